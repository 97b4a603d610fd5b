"""Stage d: the PiFlow student, which imitates the guided flow teacher along its own policy (arXiv 2510.14974).

One call of the student predicts clean latents at N_GRID times of a segment; between them the policy interpolates, and
needs no network. Training walks that policy from a start of a segment, without gradient, to random times in it, and
asks the teacher there: the policy's clean latents must be the teacher's. Half of the starts are noised data, the other
half is where the student's own earlier segments ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import architecture
import build
import parts
import render
import torch
from denoiser import guided, predict, shifted
from diffusers import Kandinsky6Transformer3DModel
from latents import NEGATIVE, Store, Text, TextEncoders, new_store
from progress import (
    Average,
    Budget,
    Half,
    Keeper,
    Log,
    Step,
    clip,
    compiled,
    learning_rate,
    optimizer,
    prepare,
    set_rate,
)
from torch import Tensor
from train_flow import IMAGE_EVERY, await_ready

PEAK_RATE, SHIFT, GRID, STEPS = 1e-3, architecture.SHIFT, architecture.N_GRID, 10
SEGMENT = 1 / (STEPS - 0.5)
EPSILON = 1e-3
SUBSTEPS = 6  # Euler steps between two stops of a walk
LEAST_SIGMA = 0.1  # under it the error of the velocity is weighed as if the noise level were this


@dataclass
class Starts:
    """Segments to learn from: latents at their starts, what they are of, and the number of the segment (B,)."""

    video: Tensor
    audio: Tensor
    image: Tensor | None
    text: Text
    number: Tensor


def train(
    work: Path, until: float, device: str, *, guidance: float, batch: int = 64, clips: int = 4096, first: int = 2048,
    chunk: int = 64,
    fresh: bool, peak: float = PEAK_RATE, window: render.Window = render.WHOLE,
) -> None:  # fmt: skip
    """Train until ``until`` (time.time()) from the flow's weights, or the student's own; write the averaged ones.

    guidance: the teacher's, which the student learns to do without.
    """
    prepare(device)
    log, folder, source = Log(work / "logs", "piflow"), work / "piflow" / "transformer", work / "flow" / "transformer"
    student, teacher = (build.new_transformer(f).to(device).train() for f in ("piflow", "flow"))
    text = TextEncoders(work, device)
    store = new_store(
        work, text, clips, 77, lambda: await_ready(_autoencoders(work), 400), window, first=first, chunk=chunk
    )
    log.write(encoded=store.filled)
    lesson = Lesson(student, teacher, text([NEGATIVE]), guidance, device)
    for with_image in (False, True):  # compile and capture before the time starts to count, on weights of no worth
        lesson(_starts(store, batch, None, with_image))
    log.write(compiled=True)
    await_ready([source], 600)
    taught = Kandinsky6Transformer3DModel.from_pretrained(source, dtype=torch.float32).to(device)
    first_weights = widened(taught) if fresh else parts.load(Kandinsky6Transformer3DModel, folder, device)
    lesson.begin(student, first_weights, taught)
    _fit(lesson, student, store, Budget(max(until - time.time(), 1.0)), log, batch, peak, folder)
    parts.save(student, folder, ready=True)
    log.write(done=True)


def _fit(
    lesson: Lesson, student: Any, store: Store, budget: Budget, log: Log, batch: int, peak: float, folder: Path
) -> None:
    """The loop; leaves the averaged weights in ``student``, and now and then also in ``folder``."""
    keeper = Keeper(budget)
    optimiser, average, count = optimizer(student, peak, decay=0.0), Average(student, horizon=400), 0
    own: dict[bool, Starts | None] = {False: None, True: None}
    while budget.goes_on():
        set_rate(optimiser, learning_rate(budget.part, peak))
        with_image = count % IMAGE_EVERY == IMAGE_EVERY - 1
        if count % 256 == 255:
            store.renew()
        seen, heard, own[with_image] = lesson(_starts(store, batch, own[with_image], with_image))
        clip(student)
        optimiser.step()
        lesson.half.take_weights()
        average.update()
        count += 1
        if log.is_due() or count == 1:
            log.write(step=count, video=seen, audio=heard)
        keeper.keep(student, average, folder)
    average.swap()


def _autoencoders(work: Path) -> list[Path]:
    return [work / "common" / name for name in ("vae", "audio_vae")]


def widened(teacher: Any) -> Any:
    """A student that starts as the teacher: each of its GRID predictions is the teacher's one."""
    student = Kandinsky6Transformer3DModel(**architecture.transformer("piflow"))
    weights = dict(teacher.state_dict())
    for head in ("out_layer.out_layer", "audio_out_layer.out_layer"):
        for name in (f"{head}.weight", f"{head}.bias"):
            weights[name] = weights[name].repeat(GRID, *[1] * (weights[name].ndim - 1))
    student.load_state_dict(weights)
    return student.to(next(teacher.parameters()).device).train()


def raw_start(number: Tensor) -> Tensor:
    """Raw time at which segment ``number`` starts, 1 for the first."""
    return 1 - number * SEGMENT


def raw_end(number: Tensor) -> Tensor:
    return (1 - (number + 1) * SEGMENT).clamp(min=EPSILON)


def walk(x: Tensor, grid: Tensor, number: Tensor, raw: Tensor, to: Tensor) -> Tensor:
    """The policy from ``x`` at raw time ``raw`` to ``to`` (B,); ``grid`` are the clean latents (B, GRID, ...)."""
    for i in range(SUBSTEPS):
        here, there = torch.lerp(raw, to, i / SUBSTEPS), torch.lerp(raw, to, (i + 1) / SUBSTEPS)
        sigma, following = (shifted(t, SHIFT).view(-1, *[1] * (x.ndim - 1)) for t in (here, there))
        clean = interpolated(grid, number, here)
        x = clean + (x - clean) * (following / sigma)
    return x


def interpolated(grid: Tensor, number: Tensor, raw: Tensor) -> Tensor:
    """Clean latents of the policy at ``raw``: entry 0 belongs to the segment's end, the last one to its start."""
    end = raw_end(number)
    place = ((raw - end) / (raw_start(number) - end)).clamp(0, 1) * (GRID - 1)
    weights = (1 - (place[:, None] - torch.arange(GRID, device=grid.device)).abs()).clamp(min=0)
    return torch.einsum("bg,bg...->b...", weights, grid)


class Lesson:
    """One step of imitation, captured once without and once with a tail picture."""

    def __init__(self, student: Any, teacher: Any, empty: Text, guidance: float, device: str) -> None:
        self.half, self.empty, self.guidance = Half(student), empty, guidance
        self.student = compiled(self.half.model, device)
        self.taught = Half(teacher)
        self.teacher = compiled(self.taught.model.requires_grad_(False), device)
        self.steps: dict[bool, Step] = {}
        self.ends: dict[bool, list[Tensor]] = {}

    @torch.no_grad()
    def begin(self, student: Any, weights: Any, teacher: Any) -> None:
        """Put real weights where the compiled and captured ones lie."""
        student.load_state_dict(weights.state_dict())
        self.half.take_weights()
        torch._foreach_copy_(self.taught.halves, list(teacher.parameters()))

    def __call__(self, starts: Starts) -> tuple[Tensor, Tensor, Starts]:
        """Losses for picture and sound, with gradients left in the student, and the starts of the next segments."""
        text, image, key = starts.text, starts.image, starts.image is not None
        inputs = [starts.video, starts.audio, starts.number, text.tokens, text.mask, text.pooled]
        inputs += [] if image is None else [image]
        if key not in self.steps:
            self.steps[key] = Step(self._losses, self.half.halves, inputs)
        seen, heard = self.steps[key](*inputs)
        self.half.give_gradients(self.steps[key].gradients)
        video, audio = (x.clone() for x in self.ends[key])
        return seen, heard, Starts(video, audio, image, text, starts.number + 1)

    def _losses(
        self, video: Tensor, audio: Tensor, number: Tensor, tokens: Tensor, mask: Tensor, pooled: Tensor,
        image: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        starts = Starts(video, audio, image, Text(tokens, mask, pooled), number)
        sigma = shifted(raw_start(number), SHIFT)
        grids = predict(self.student, video, audio, image, sigma, starts.text, self.half.dtype)
        cleans = [_clean(x, u, sigma) for x, u in zip((video, audio), grids, strict=True)]
        stops, latents = self._stroll(starts, [c.detach() for c in cleans])
        losses = [torch.zeros((), device=number.device) for _ in cleans]
        for raw, at in zip(stops[:-1], latents[:-1], strict=True):
            level = shifted(raw, SHIFT)
            wanted = self._ask(at, starts, level)
            for i, (clean, goal) in enumerate(zip(cleans, wanted, strict=True)):
                losses[i] = losses[i] + _weighted_error(clean, goal, number, raw, level) / (len(stops) - 1)
        self.ends[image is not None] = latents[-1]
        return losses[0], losses[1]

    @torch.no_grad()
    def _stroll(self, starts: Starts, cleans: list[Tensor]) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Two random stops in each segment and its end: raw times, and (video, audio) there."""
        number = starts.number
        draw = torch.rand(2, len(number), device=number.device).sort(dim=0, descending=True).values
        stops = [torch.lerp(raw_end(number), raw_start(number), d) for d in draw] + [raw_end(number)]
        latents, raw, now = [], raw_start(number), [starts.video, starts.audio]
        for stop in stops:
            now = [walk(x, c, number, raw, stop) for x, c in zip(now, cleans, strict=True)]
            latents.append(now)
            raw = stop
        return stops, latents

    @torch.no_grad()
    def _ask(self, at: list[Tensor], starts: Starts, sigma: Tensor) -> list[Tensor]:
        """The teacher's clean latents at ``at``."""
        velocity = guided(
            self.teacher, at[0], at[1], starts.image, sigma, starts.text, self.empty, self.guidance, self.half.dtype
        )
        return [x - sigma.view(-1, *[1] * (x.ndim - 1)) * v for x, v in zip(at, velocity, strict=True)]


def _clean(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """The grid of clean latents (B, GRID, ...) from the student's output, whose channels are grid-major."""
    grid = velocity.reshape(*velocity.shape[:-1], GRID, x.shape[-1]).movedim(-2, 1)
    return x[:, None] - sigma.view(-1, *[1] * x.ndim) * grid


def _weighted_error(clean: Tensor, goal: Tensor, number: Tensor, raw: Tensor, level: Tensor) -> Tensor:
    """Mean squared error of the policy's velocity at ``raw``."""
    weight = 1 / level.clamp(min=LEAST_SIGMA).square()
    error = (interpolated(clean, number, raw) - goal).square().flatten(1).mean(1)
    return (error * weight).mean()


def _starts(store: Store, batch: int, own: Starts | None, with_image: bool) -> Starts:
    """Half noised data at random segments, half the student's own ends; those that are finished start anew."""
    video, audio, image, text = store.sample(batch, with_image=with_image)
    number = torch.randint(STEPS, (batch,), device=video.device)
    sigma = shifted(raw_start(number), SHIFT)
    video = torch.lerp(video, torch.randn_like(video), sigma.view(-1, 1, 1, 1, 1))
    audio = torch.lerp(audio, torch.randn_like(audio), sigma.view(-1, 1, 1))
    if own is None:
        number = torch.where(torch.arange(batch, device=number.device) < batch // 2, number, 0)
        return _renewed(Starts(video, audio, image, text, number))
    half = torch.arange(batch, device=video.device) < batch // 2
    goes_on = ~half & (own.number < STEPS)
    mixed = Text(*(
        torch.where(goes_on.view(-1, *[1] * (getattr(text, n).ndim - 1)), getattr(own.text, n), getattr(text, n))
        for n in ("tokens", "mask", "pooled")
    ))  # fmt: skip
    number = torch.where(goes_on, own.number, torch.where(half, number, 0))
    wide, flat = goes_on.view(-1, 1, 1, 1, 1), goes_on.view(-1, 1, 1)
    if image is not None and own.image is not None:
        image = torch.where(goes_on.view(-1, 1, 1, 1), own.image, image)
    fresh = _renewed(Starts(video, audio, image, mixed, number))
    return Starts(
        torch.where(wide, own.video, fresh.video), torch.where(flat, own.audio, fresh.audio), image, mixed, number
    )


def _renewed(starts: Starts) -> Starts:
    """Pure noise wherever a walk begins at segment 0."""
    first = starts.number == 0
    starts.video = torch.where(first.view(-1, 1, 1, 1, 1), torch.randn_like(starts.video), starts.video)
    starts.audio = torch.where(first.view(-1, 1, 1), torch.randn_like(starts.audio), starts.audio)
    return starts
