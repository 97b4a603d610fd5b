"""Clock: a denoising run timed by events on the device, per step and per block, with the bytes that moved meanwhile."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from common.facts import read_bytes
from yellowsound.memory.driver import Driver
from yellowsound.memory.stack import driver_of, predict, prepare_clip
from yellowsound.stages.denoise import Predict, StepResult, denoise
from yellowsound.stages.latents import Latents
from yellowsound.stages.text import TextEmbeds

SCHEDULE = 10  # every run follows a ten-step schedule, so that what was hoisted for one run holds for the next


def mark(device: torch.device) -> Any:
    """A place in the compute stream, or on a CPU this moment."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between(start: Any, end: Any) -> float:
    """Seconds from one mark to another; the device must have passed both."""
    return float(end - start) if isinstance(start, float) else float(start.elapsed_time(end)) / 1000


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class BlockClock:
    """Marks before the first and after the last kernel of every block, on the stream that runs them.

    The first mark comes after the wait for the block's weights, so what a block takes never contains waiting.
    """

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self.marks: list[tuple[Any, Any]] = []
        self._shell, self._call, self._device = driver.block_shell, driver.block_shell.call, device
        self._shell.call = self._timed

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        start = mark(self._device)
        output = self._call(*args, **kwargs)
        self.marks.append((start, mark(self._device)))
        return output

    def remove(self) -> None:
        self._shell.call = self._call


class _Enough(Exception):
    """Steps after these are not asked for."""


@dataclass(slots=True)
class Timed:
    """A run: seconds in all, per step, of every block by step, and between neighbouring blocks of a step.

    read_bytes: from disk, per step as the host saw it. free_bytes: least free memory of the card at a step's end.
    """

    wall_seconds: float
    step_seconds: list[float]
    block_seconds: list[list[float]]
    gap_seconds: list[float]
    read_bytes: list[int]
    copied_bytes: int
    host_waits: int
    is_finite: bool
    digest: str
    latents: Latents
    free_bytes: int | None = None

    @property
    def idle_share(self) -> float | None:
        """(wall - sum of block times) / wall: embeddings, heads and scheduler count as idle too."""
        if not self.block_seconds:
            return None
        return 1 - sum(map(sum, self.block_seconds)) / self.wall_seconds

    @property
    def gap_share(self) -> float | None:
        """Time between neighbouring blocks over wall: what waiting for weights can cost at most."""
        return sum(self.gap_seconds) / self.wall_seconds if self.block_seconds else None

    def to_json(self) -> dict[str, Any]:
        """Without the latents; block times as one median a step."""
        medians = [sorted(step)[len(step) // 2] for step in self.block_seconds if step]
        return {
            "wall_seconds": self.wall_seconds, "step_seconds": self.step_seconds,
            "block_seconds_by_step": [sum(step) for step in self.block_seconds], "block_seconds_median": medians,
            "gap_seconds_by_step": self.gap_seconds, "idle_share": self.idle_share, "gap_share": self.gap_share,
            "read_bytes_by_step": self.read_bytes, "copied_bytes": self.copied_bytes, "host_waits": self.host_waits,
            "is_finite": self.is_finite, "digest": self.digest,
        }  # fmt: skip


@dataclass(slots=True)
class _Notes:
    """What the steps of a run leave behind."""

    device: torch.device
    steps: int
    clock: BlockClock | None
    marks: list[Any] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    latents: Latents | None = None
    free: int | None = None

    def begin(self) -> None:
        self.reads.append(read_bytes())
        self.marks.append(mark(self.device))

    def on_step(self, result: StepResult) -> None:
        self.marks.append(mark(self.device))
        self.reads.append(read_bytes())
        self.blocks.append(len(self.clock.marks) if self.clock else 0)
        self.latents = result.latents
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            self.free = free if self.free is None else min(self.free, free)
        if result.step == self.steps:
            raise _Enough


@torch.no_grad()
def run_steps(
    transformer: Any,
    scheduler: Any,
    latents: Latents,
    texts: Sequence[TextEmbeds],
    steps: int,
    *,
    guidance: float = 1.0,
    ask: Predict = predict,
    schedule: int = SCHEDULE,
) -> Timed:
    """The first ``steps`` of the engine's own denoising loop.

    No wait for the device between steps: the host runs ahead as far as it may.
    """
    device = latents.video.device
    driver = driver_of(transformer)
    clock = None if driver is None else BlockClock(driver, device)
    notes = _Notes(device, steps, clock)
    synchronize(device)
    counts = (0, 0) if driver is None else (driver.conveyor.counts.copied_bytes, driver.conveyor.counts.host_waits)
    began = time.perf_counter()
    try:
        notes.begin()
        prepare = {} if driver is None else {"prepare": partial(prepare_clip, transformer)}
        denoise(
            transformer, scheduler, latents, texts, guidance, schedule, predict=ask, on_step=notes.on_step, **prepare
        )  # fmt: skip
    except _Enough:
        synchronize(device)
    finally:
        if clock is not None:
            clock.remove()
    wall = time.perf_counter() - began
    after = (0, 0) if driver is None else (driver.conveyor.counts.copied_bytes, driver.conveyor.counts.host_waits)
    return _timed(notes, wall, after[0] - counts[0], after[1] - counts[1])


def _timed(notes: _Notes, wall: float, copied: int, waits: int) -> Timed:
    assert notes.latents is not None
    marks = notes.clock.marks if notes.clock else []
    by_step = [marks[start:end] for start, end in pairwise([0, *notes.blocks])] if marks else []
    parts = [part for part in (notes.latents.video, notes.latents.audio) if part is not None]
    return Timed(
        wall_seconds=wall,
        step_seconds=[between(a, b) for a, b in pairwise(notes.marks)],
        block_seconds=[[between(a, b) for a, b in step] for step in by_step],
        gap_seconds=[sum(between(a[1], b[0]) for a, b in pairwise(step)) for step in by_step],
        read_bytes=[b - a for a, b in pairwise(notes.reads)],
        copied_bytes=copied,
        host_waits=waits,
        is_finite=all(bool(part.isfinite().all()) for part in parts),
        digest=digest(notes.latents),
        latents=notes.latents,
        free_bytes=notes.free,
    )


def digest(latents: Latents) -> str:
    """SHA-256 of both modalities' bits."""
    found = hashlib.sha256()
    for part in (latents.video, latents.audio):
        if part is not None:
            found.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
