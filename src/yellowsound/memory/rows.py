"""Rows: the hoisted results of one (step, branch) in one stretch of bytes, and how a step's rows reach the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from yellowsound.memory.device import Device, Fence, Stream
from yellowsound.memory.units import ALIGNMENT_BYTES, round_up

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where everything lies in a row: both towers' text output, then each block's modulations, in order.

    One stretch of bytes, so that a row travels in one copy. Every piece begins at a multiple of 512 bytes, as the
    allocator would place it: matrix products may pick another kernel, hence other bits, for data that does not.
    """

    dtype: torch.dtype
    texts: Mapping[str, Shape]
    modulations: tuple[Shape, ...]
    blocks: int

    @property
    def size_bytes(self) -> int:
        return self._texts_bytes + self.blocks * sum(map(self._bytes, self.modulations))

    def text(self, row: Tensor, tower: str) -> Tensor:
        """A tower's text output (B, L, D) in ``row`` (uint8)."""
        names = list(self.texts)
        start = sum(self._bytes(self.texts[name]) for name in names[: names.index(tower)])
        return self._view(row, start, self.texts[tower])

    def modulation(self, row: Tensor, block: int, column: int) -> Tensor:
        """Modulation ``column`` (B, n) of a block in ``row`` (uint8)."""
        starts = list(accumulate(map(self._bytes, self.modulations), initial=0))
        start = self._texts_bytes + block * starts[-1] + starts[column]
        return self._view(row, start, self.modulations[column])

    @property
    def _texts_bytes(self) -> int:
        return sum(map(self._bytes, self.texts.values()))

    def _bytes(self, shape: Shape) -> int:
        return round_up(torch.Size(shape).numel() * self.dtype.itemsize, ALIGNMENT_BYTES)

    def _view(self, row: Tensor, start: int, shape: Shape) -> Tensor:
        with torch.inference_mode(False):
            size = torch.Size(shape).numel() * self.dtype.itemsize
            return row[start : start + size].view(self.dtype).view(shape)


class StepRows:
    """The rows of the running step and of the next one, on the device, if their home is in host memory.

    They come on the copy stream while the step before computes. Fetched block by block on the compute stream they
    would queue behind the weights on the link: 0.3 s of a step of 9.4 s on an H200 (docs/measurements.md).
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: list[list[Tensor]] = [[], []]  # one row for each branch
        self._steps: list[int | None] = [None, None]  # which step's rows a buffer holds
        self._ready: list[Any] = [None, None]
        self._running: int | None = None

    def enter(self, step: int, steps: int, homes: Callable[[int], Sequence[Tensor]]) -> None:
        """Step ``step`` of ``steps`` begins: its rows are there for what is queued from now on, the next ones follow.

        homes: from a step to its rows in host memory, one for each branch; complete by what is queued so far.
        """
        if step == self._running:
            return
        self._running = step
        free = self._device.record(Stream.COMPUTE, Fence.ROWS_FREE)
        if self._steps[step % 2] != step:
            self._bring(step, homes(step), free)
        self._device.wait(Stream.COMPUTE, self._ready[step % 2], Fence.ROWS_READY)
        if step + 1 < steps:
            self._bring(step + 1, homes(step + 1), free)

    def get(self, step: int) -> list[Tensor] | None:
        """The rows of ``step``, one for each branch; None unless it is the running one."""
        return self._buffers[step % 2] if step == self._running else None

    def forget(self) -> None:
        """What the buffers hold is of no use any more; their memory is kept."""
        self._steps, self._running = [None, None], None

    def close(self) -> None:
        """Give the memory back, after everything queued."""
        self.forget()
        if any(self._buffers):
            for stream in Stream:
                self._device.synchronize(self._device.record(stream, Fence.IDLE), Fence.IDLE)
        for buffer in self._buffers:
            for row in buffer:
                self._device.free(row)
            buffer.clear()

    def _bring(self, step: int, rows: Sequence[Tensor], free: Any) -> None:
        place = step % 2
        buffer = self._buffers[place]
        if [row.numel() for row in rows] != [row.numel() for row in buffer]:
            buffer[:] = [self._device.alloc(row.numel()) for row in rows]
        self._device.wait(Stream.COPY, free, Fence.ROWS_FREE)
        for target, row in zip(buffer, rows, strict=True):
            self._device.copy(target, row, Stream.COPY)
        self._steps[place], self._ready[place] = step, self._device.record(Stream.COPY, Fence.ROWS_READY)
