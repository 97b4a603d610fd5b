"""Run: one clip being made. Times its stages, tells its events, and notes the peaks of memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from yellowsound.events import CancelToken, Event, OnEvent, Stage, StageBegan, StageEnded, Warned
from yellowsound.stages.cancel import cancellable


class Run:
    """The life of one clip: ``emit`` tells an event, ``stage`` brackets a stage, ``seconds`` keeps what each took."""

    def __init__(self, on_event: OnEvent | None, cancel: CancelToken | None, device: torch.device) -> None:
        self.emit: OnEvent = on_event or _silent
        self.cancel = cancel or CancelToken()
        self.seconds: dict[Stage, float] = {}
        self.warnings: list[str] = []
        self._device, self._highest_vram = device, 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def warn(self, message: str) -> None:
        """Tell and keep a warning, so that it reaches the clip's metadata too."""
        self.warnings.append(message)
        self.emit(Warned(message=message))

    @contextmanager
    def stage(self, name: Stage, *models: Any) -> Iterator[None]:
        """Bracket a stage: events, seconds, and a check for cancelling before each block of ``models``."""
        self.cancel.check()
        self.emit(StageBegan(stage=name))
        began = time.perf_counter()
        with cancellable(self.cancel, *models):
            yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        spent = time.perf_counter() - began
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self.emit(StageEnded(stage=name, seconds=spent))

    @contextmanager
    def noting_peak(self, note: Callable[[int], object]) -> Iterator[None]:
        """Tell ``note`` how many bytes of a card were taken at most beyond those held at the beginning.

        Nothing is told after an error, nor without a card.
        """
        if self._device.type != "cuda":
            yield
            return
        self._highest_vram = self._vram()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        yield
        note(torch.cuda.max_memory_allocated(self._device) - before)

    def peaks(self) -> dict[str, int]:
        """Highest use so far: ``peak_vram_bytes`` of torch's allocator, ``peak_ram_bytes`` of this process."""
        ram = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"peak_vram_bytes": self._vram(), "peak_ram_bytes": ram}

    def _vram(self) -> int:
        """The allocator's peak since the clip began, whatever was reset in between."""
        if self._device.type != "cuda":
            return 0
        return max(self._highest_vram, torch.cuda.max_memory_allocated(self._device))


def _silent(_: Event) -> None:
    """For a caller who wants no events."""
