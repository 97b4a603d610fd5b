"""Draws and sounds scenes of the demo world as torch operations, whole batches at once, on any device.

Everything is analytic: positions are functions of time, shapes are signed distances, sounds are sums of tones and
decaying knocks. So pictures and sound of one scene agree to the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from yellowsound.demo.world import (
    COLOURS,
    DURATION_SECONDS,
    FLOORS,
    FRAME_RATE,
    HEIGHT,
    MOTIONS,
    NUM_FRAMES,
    SAMPLE_RATE,
    SHAPES,
    WALLS,
    WIDTH,
    Chance,
    Scene,
    start_phase,
)  # fmt: skip

NUM_SAMPLES = 88 * 1024  # the audio latents of 49 frames
HORIZON, GROUND = 84.0, 108.0
Window = tuple[int | Tensor, int | Tensor, int, int]  # top, left (one for all or (B, 1, 1, 1)), height, width
WHOLE: Window = (0, 0, HEIGHT, WIDTH)
CUTOUT: Window = (64, 72, 32, 48)  # enough for a smoke run on a CPU
VOICES = ("silent", "knock", "beep", "rising", "falling", "steady", "height")
BOUNCE, LEFT, RIGHT, CLOCKWISE, COUNTERCLOCKWISE, GROW, SHRINK, BLINK = range(len(MOTIONS))
BOTTOM = (1.0, 0.88, 0.8)  # how far a shape reaches below its centre, in sizes


@dataclass
class Batch:
    """Scenes as tensors of length B on one device: indices into the world's tuples, colours and chances in 0..1."""

    shape: Tensor
    motion: Tensor
    voice: Tensor
    count: Tensor
    colour: Tensor
    floor: Tensor
    wall: Tensor
    x: Tensor
    y: Tensor
    size: Tensor
    phase: Tensor
    pitch: Tensor

    def to(self, device: str | torch.device) -> Batch:
        return Batch(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))

    def __getitem__(self, index: slice | Tensor) -> Batch:
        return Batch(*(getattr(self, f.name)[index] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.shape)


def batch_of(scenes: Sequence[Scene], chances: Sequence[Chance]) -> Batch:
    """The scenes as tensors on the CPU."""
    rgb = {name: torch.tensor(value) / 255 for table in (COLOURS, WALLS) for name, value in table.items()}
    floors = {name: torch.tensor(value) / 255 for name, value in FLOORS.items()}
    return Batch(
        shape=torch.tensor([SHAPES.index(s.shape) for s in scenes]),
        motion=torch.tensor([MOTIONS.index(s.motion) for s in scenes]),
        voice=torch.tensor([VOICES.index(s.voice) for s in scenes]),
        count=torch.tensor([s.count for s in scenes]),
        colour=torch.stack([rgb[s.colour] for s in scenes]),
        floor=torch.stack([floors[s.floor] for s in scenes]),
        wall=torch.stack([rgb[s.wall] for s in scenes]),
        x=torch.tensor([c.x for c in chances]),
        y=torch.tensor([c.y for c in chances]),
        size=torch.tensor([c.size for c in chances]),
        phase=torch.tensor([start_phase(c) for c in chances]),
        pitch=torch.tensor([c.pitch for c in chances]),
    )


def random_batch(number: int, device: str | torch.device, generator: torch.Generator | None = None) -> Batch:
    """Random scenes drawn on the device, any combination: for the autoencoders, which see no captions."""

    def pick(size: int) -> Tensor:
        return torch.randint(size, (number,), device=device, generator=generator)

    def unit() -> Tensor:
        return torch.rand(number, device=device, generator=generator)

    def palette(table: dict[str, tuple[int, int, int]]) -> Tensor:
        colours = torch.tensor(list(table.values()), device=device)[pick(len(table))]
        return colours / 255

    motion = pick(len(MOTIONS))
    counted = (motion == BOUNCE) | (motion == BLINK)
    usual = torch.tensor([1, 6, 6, 6, 6, 3, 4, 2], device=device)[motion]
    voice = torch.where(unit() < 0.8, usual, pick(len(VOICES)))
    voice = torch.where(counted & (voice > 2), usual, voice)
    voice = torch.where(~counted & (voice < 3) & (voice > 0), usual, voice)
    count = torch.where(counted, 2 + pick(3), 0)
    phase = 0.38 + 0.24 * unit()
    return Batch(
        pick(len(SHAPES)), motion, voice, count, palette(COLOURS), palette(FLOORS), palette(WALLS),
        unit(), unit(), unit(), phase, unit(),
    )  # fmt: skip


def cycles(batch: Batch, seconds: Tensor) -> Tensor:
    """How many periods have passed at each time, (B, T); an event is where this passes a whole number."""
    return batch.phase[:, None] + seconds[None] * batch.count[:, None] / DURATION_SECONDS


def centres(batch: Batch, seconds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centre x, centre y, size and visibility (0 or 1) of the objects at ``seconds`` (T,), each (B, T) in pixels."""
    part = (seconds / DURATION_SECONDS)[None]
    x, y, motion = batch.x[:, None], batch.y[:, None], batch.motion[:, None]
    size = (13 + 5 * batch.size[:, None]).expand(-1, len(seconds))
    size = torch.where(motion == GROW, 8 + 19 * part, torch.where(motion == SHRINK, 27 - 19 * part, size))
    rest = GROUND - size * torch.tensor(BOTTOM, device=x.device)[batch.shape][:, None]
    passed = cycles(batch, seconds)
    fall = 1 - (2 * (passed % 1) - 1) ** 2
    angle = 2 * torch.pi * (x + part * torch.where(motion == CLOCKWISE, 1.0, -1.0))
    slide = 36 + 14 * x + (92 + 14 * y) * torch.where(motion == LEFT, 1 - part, part)
    sliding, circling = (motion == LEFT) | (motion == RIGHT), (motion == CLOCKWISE) | (motion == COUNTERCLOCKWISE)
    still_x, still_y = 48 + 96 * x, 52 + 24 * y
    centre_x = torch.where(sliding, slide, torch.where(circling, 78 + 36 * y + 32 * angle.cos(), still_x))
    centre_y = torch.where(circling, 58 + 32 * angle.sin(), still_y)
    centre_y = torch.where(motion == BOUNCE, rest - 58 * fall, torch.where(sliding, rest, centre_y))
    shown = (motion != BLINK) | ((passed >= 1) & (passed % 1 < 0.5))
    return centre_x.expand_as(size), centre_y.expand_as(size), size, shown.float().expand_as(size)


def draw(batch: Batch, frames: Tensor, window: Window = WHOLE) -> Tensor:
    """The pictures at frame numbers ``frames`` (T,): (B, 3, T, HEIGHT, WIDTH) in -1..1, or a ``window`` of them."""
    return paint(batch, frames, window)[0]


def paint(batch: Batch, frames: Tensor, window: Window = WHOLE) -> tuple[Tensor, Tensor]:
    """``draw``, and how much of each pixel the object covers: (B, 1, T, HEIGHT, WIDTH) in 0..1."""
    top, left, high, wide = window
    device = batch.x.device
    cx, cy, size, shown = (v[:, :, None, None] for v in centres(batch, frames.to(device) / FRAME_RATE))
    row = torch.arange(high, device=device).view(1, 1, -1, 1) + 0.5 + top
    across = (torch.arange(wide, device=device).view(1, 1, 1, -1) + 0.5 + left - cx).abs()
    down = row - cy
    shape = batch.shape.view(-1, 1, 1, 1)
    ball = (across.square() + down.square()).sqrt() - size
    square = torch.maximum(across, down.abs()) - 0.88 * size
    triangle = torch.maximum(down - 0.8 * size, (1.9 * across - 1.1 * (down + 1.1 * size)) / 2.195)
    distance = torch.where(shape == 0, ball, torch.where(shape == 1, square, triangle))
    cover = ((0.5 - distance).clamp(0, 1) * shown)[:, None]
    ground = (row - HORIZON + 0.5).clamp(0, 1)[:, None]

    def fill(colour: Tensor) -> Tensor:
        return colour.view(-1, 3, 1, 1, 1)

    scene = torch.lerp(fill(batch.wall), fill(batch.floor), ground)
    return torch.lerp(scene, fill(batch.colour), cover) * 2 - 1, cover


def sound(batch: Batch, generator: torch.Generator | None = None) -> Tensor:
    """The sound of whole clips: (B, NUM_SAMPLES) float32 in -1..1."""
    device = batch.x.device
    seconds = torch.arange(NUM_SAMPLES, device=device, dtype=torch.float32) / SAMPLE_RATE
    noise = torch.randn(NUM_SAMPLES, device=device, generator=generator)
    voice = batch.voice[:, None]
    result = torch.where(voice >= 3, _tone(batch, seconds), 0.0)
    tuned = 0.95 + 0.1 * batch.pitch[:, None]
    for k in range(1, 5):
        since = seconds[None] - ((k - batch.phase) * DURATION_SECONDS / batch.count.clamp(min=1))[:, None]
        heard = (since >= 0) & (k <= batch.count)[:, None]
        late = since.clamp(min=0)
        knock = 0.75 * (-late / 0.045).exp() * (2 * torch.pi * 190 * tuned * late).sin()
        knock = knock + 0.1 * noise * (-late / 0.006).exp()
        beep = 0.4 * (2 * torch.pi * 900 * tuned * late).sin() * _fade(late, 0.12, 0.005)
        result = result + torch.where(heard & (voice == 1), knock, 0.0) + torch.where(heard & (voice == 2), beep, 0.0)
    return result


def _tone(batch: Batch, seconds: Tensor) -> Tensor:
    """A tone whose pitch rises, falls, stays or follows the object's height, over 280 to 840 Hz."""
    part = (seconds / DURATION_SECONDS).clamp(max=1)[None]
    coarse = torch.arange(NUM_SAMPLES // 512 + 1, device=seconds.device) * 512 / SAMPLE_RATE
    height = ((90 - centres(batch, coarse)[1]) / 64).clamp(0, 1)
    height = torch.nn.functional.interpolate(height[:, None], size=NUM_SAMPLES, mode="linear", align_corners=True)[:, 0]
    voice = batch.voice[:, None]
    octave = torch.where(voice == 3, part, torch.where(voice == 4, 1 - part, torch.where(voice == 6, height, 0.4)))
    hertz = 280 * (0.95 + 0.1 * batch.pitch[:, None]) * 3**octave
    turns = (hertz.double() / SAMPLE_RATE).cumsum(-1).remainder(1).float() * 2 * torch.pi
    return (0.35 * turns.sin() + 0.07 * (2 * turns).sin()) * _fade(seconds, DURATION_SECONDS, 0.03)


def _fade(since: Tensor, length: float, edge: float) -> Tensor:
    """1 inside 0..length, falling to 0 over ``edge`` seconds at both ends."""
    return (torch.minimum(since, length - since) / edge).clamp(0, 1)


def around(batch: Batch, frame: float, high: int, wide: int) -> Window:
    """For each scene a window of that size which holds the object at ``frame``, not always in the middle."""
    seconds = torch.tensor([frame / FRAME_RATE], device=batch.x.device)
    cx, cy, _, _ = centres(batch, seconds)
    corner = []
    for centre, size, whole in ((cy, high, HEIGHT), (cx, wide, WIDTH)):
        jitter = (torch.rand_like(centre) - 0.5) * 0.6 * size
        corner.append((centre + jitter - size / 2).clamp(0, whole - size).round().view(-1, 1, 1, 1))
    return corner[0], corner[1], high, wide


def whole_clip(batch: Batch, window: Window = WHOLE) -> Tensor:
    """All NUM_FRAMES pictures of the batch."""
    return draw(batch, torch.arange(NUM_FRAMES), window)
