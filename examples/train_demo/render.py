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
VOICES = ("silent", "knock", "rising", "falling", "steady")
SILENT, KNOCK, RISING, FALLING, STEADY = range(len(VOICES))
BOUNCE, LEFT, RIGHT, CLOCKWISE, COUNTERCLOCKWISE, GROW, SHRINK = range(len(MOTIONS))
FALL = 46.0  # how high the object bounces, in pixels
RADIUS, START = 26.0, -0.25  # of a circle, in pixels; where it starts, in turns: at the top, give or take 0.05
BASE_HERTZ = SAMPLE_RATE / 512  # the vocoder's frame rate; it can only hold tones that are multiples of it
NOTES = 7  # of a rising or falling tone: multiples 4 to 10
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

    motion = pick(len(MOTIONS) + 1) % len(MOTIONS)
    usual = torch.tensor([KNOCK, STEADY, STEADY, STEADY, STEADY, RISING, FALLING], device=device)[motion]
    voice = torch.where(unit() < 0.9, torch.where(motion == BOUNCE, usual, 2 + pick(3)), SILENT)
    count = torch.where(motion == BOUNCE, 1 + pick(3), 0)
    phase = 0.44 + 0.12 * unit()
    return Batch(
        pick(len(SHAPES)), motion, voice, count, palette(COLOURS), palette(FLOORS), palette(WALLS),
        unit(), unit(), unit(), phase, unit(),
    )  # fmt: skip


def cycles(batch: Batch, seconds: Tensor) -> Tensor:
    """How many periods have passed at each time, (B, T); an event is where this passes a whole number."""
    return batch.phase[:, None] + seconds[None] * batch.count[:, None] / DURATION_SECONDS


def centres(batch: Batch, seconds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre x, centre y and size of the objects at ``seconds`` (T,), each (B, T) in pixels."""
    part = (seconds / DURATION_SECONDS)[None]
    x, y, motion = batch.x[:, None], batch.y[:, None], batch.motion[:, None]
    size = (13 + 5 * batch.size[:, None]).expand(-1, len(seconds))
    size = torch.where(motion == GROW, 8 + 19 * part, torch.where(motion == SHRINK, 27 - 19 * part, size))
    rest = GROUND - size * torch.tensor(BOTTOM, device=x.device)[batch.shape][:, None]
    passed = cycles(batch, seconds)
    fall = 1 - (2 * (passed % 1) - 1) ** 2
    angle = 2 * torch.pi * (START + 0.1 * (x - 0.5) + part * torch.where(motion == CLOCKWISE, 1.0, -1.0))
    slide = 36 + 14 * x + (92 + 14 * y) * torch.where(motion == LEFT, 1 - part, part)
    sliding, circling = (motion == LEFT) | (motion == RIGHT), (motion == CLOCKWISE) | (motion == COUNTERCLOCKWISE)
    still_x, still_y = 48 + 96 * x, 52 + 24 * y
    centre_x = torch.where(sliding, slide, torch.where(circling, 78 + 36 * y + RADIUS * angle.cos(), still_x))
    centre_y = torch.where(circling, 58 + RADIUS * angle.sin(), still_y)
    centre_y = torch.where(motion == BOUNCE, rest - FALL * fall, torch.where(sliding, rest, centre_y))
    return centre_x.expand_as(size), centre_y.expand_as(size), size


def draw(batch: Batch, frames: Tensor, window: Window = WHOLE) -> Tensor:
    """The pictures at frame numbers ``frames`` (T,): (B, 3, T, HEIGHT, WIDTH) in -1..1, or a ``window`` of them."""
    return paint(batch, frames, window)[0]


def paint(batch: Batch, frames: Tensor, window: Window = WHOLE) -> tuple[Tensor, Tensor]:
    """``draw``, and how much of each pixel the object covers: (B, 1, T, HEIGHT, WIDTH) in 0..1."""
    top, left, high, wide = window
    device = batch.x.device
    cx, cy, size = (v[:, :, None, None] for v in centres(batch, frames.to(device) / FRAME_RATE))
    row = torch.arange(high, device=device).view(1, 1, -1, 1) + 0.5 + top
    across = (torch.arange(wide, device=device).view(1, 1, 1, -1) + 0.5 + left - cx).abs()
    down = row - cy
    shape = batch.shape.view(-1, 1, 1, 1)
    ball = (across.square() + down.square()).sqrt() - size
    square = torch.maximum(across, down.abs()) - 0.88 * size
    triangle = torch.maximum(down - 0.8 * size, (1.9 * across - 1.1 * (down + 1.1 * size)) / 2.195)
    distance = torch.where(shape == 0, ball, torch.where(shape == 1, square, triangle))
    cover = ((0.5 - distance).clamp(0, 1))[:, None]
    ground = (row - HORIZON + 0.5).clamp(0, 1)[:, None]

    def fill(colour: Tensor) -> Tensor:
        return colour.view(-1, 3, 1, 1, 1)

    scene = torch.lerp(fill(batch.wall), fill(batch.floor), ground)
    return torch.lerp(scene, fill(batch.colour), cover) * 2 - 1, cover


def sound(batch: Batch) -> Tensor:
    """The sound of whole clips: (B, NUM_SAMPLES) float32 in -1..1, made of multiples of BASE_HERTZ in fixed phase."""
    seconds = torch.arange(NUM_SAMPLES, device=batch.x.device, dtype=torch.float32) / SAMPLE_RATE
    voice = batch.voice[:, None]
    result = torch.where(voice >= RISING, _tone(batch, seconds), 0.0)
    thud, tick = 0.7 * _partial(seconds, 2) + 0.1 * _partial(seconds, 5), _partial(seconds, 20) + _partial(seconds, 31)
    for k in range(1, 4):
        since = seconds[None] - ((k - batch.phase) * DURATION_SECONDS / batch.count.clamp(min=1))[:, None]
        heard = (since >= 0) & (k <= batch.count)[:, None] & (voice == KNOCK)
        late = since.clamp(min=0)
        knock = thud * (-late / 0.045).exp() + 0.1 * tick * (-late / 0.01).exp()
        result = result + torch.where(heard, knock, 0.0)
    return result


def _tone(batch: Batch, seconds: Tensor) -> Tensor:
    """Notes that climb, descend or stay."""
    part = (seconds / DURATION_SECONDS).clamp(max=1)[None]
    voice, note = batch.voice[:, None], (batch.pitch[:, None] * 3).floor()
    place = torch.where(voice == RISING, part, 1 - part) * NOTES - 0.5
    place = torch.where(voice == STEADY, note, place)
    total = torch.zeros_like(place + part)
    for k in range(NOTES):
        weight = ((0.5 - (place - k).abs()) / 0.07 + 0.5).clamp(0, 1)
        total = total + weight * (0.35 * _partial(seconds, 4 + k) + 0.07 * _partial(seconds, 8 + 2 * k))
    return total * _fade(seconds, DURATION_SECONDS, 0.03)


def _partial(seconds: Tensor, multiple: int) -> Tensor:
    turns = (seconds.double() * (multiple * BASE_HERTZ)).remainder(1).float()
    return (2 * torch.pi * turns).sin()


def _fade(since: Tensor, length: float, edge: float) -> Tensor:
    """1 inside 0..length, falling to 0 over ``edge`` seconds at both ends."""
    return (torch.minimum(since, length - since) / edge).clamp(0, 1)


def around(batch: Batch, frame: float, high: int, wide: int) -> Window:
    """For each scene a window of that size which holds the object at ``frame``, not always in the middle."""
    seconds = torch.tensor([frame / FRAME_RATE], device=batch.x.device)
    cx, cy, _ = centres(batch, seconds)
    corner = []
    for centre, size, whole in ((cy, high, HEIGHT), (cx, wide, WIDTH)):
        jitter = (torch.rand_like(centre) - 0.5) * 0.6 * size
        corner.append((centre + jitter - size / 2).clamp(0, whole - size).round().view(-1, 1, 1, 1))
    return corner[0], corner[1], high, wide


def whole_clip(batch: Batch, window: Window = WHOLE) -> Tensor:
    """All NUM_FRAMES pictures of the batch."""
    return draw(batch, torch.arange(NUM_FRAMES), window)
