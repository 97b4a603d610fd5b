"""Device: the few calls the conveyor needs, and nothing else that knows CUDA.

Two streams. Every wait and every record carries the name of the fence it belongs to, so that a test can take each one
away and show that bytes go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TypeVar

import torch

from yellowsound.memory.budget import host_memory
from yellowsound.memory.pinned import (
    CudaRegistrar,
    HostBlock,
    LimitedRegistrar,
    hides_its_pin_limit,
    probe_pin_limit,
)

T = TypeVar("T")
CACHE_LINE_BYTES = 64


class Stream(Enum):
    """Copies run on one stream, blocks on the other; each is first in, first out."""

    COPY = "copy"
    COMPUTE = "compute"


class Fence(Enum):
    """Every order between the two streams and the host, by name."""

    READ = "a copy follows the read that fills its source"
    SLOT_FREE = "a copy into a slot follows the block that used the slot"
    READY = "a block follows the copies that brought its weights"
    CHUNK_COPIED = "a read into a ring chunk follows the copy that emptied it"
    HOME_COPIED = "a home is given back after the last copy out of it"
    ROWS_FREE = "a step's rows are brought after they were made, over rows that are no longer used"
    ROWS_READY = "a step follows the copies that brought its rows"
    IDLE = "memory is freed after everything queued has run"


class Device(Protocol):
    """Where blocks run. ``copy`` and ``run`` are queued on a stream; ``record`` marks a place in it."""

    torch_device: torch.device
    line_bytes: int  # a tensor keeps its file offset modulo this, see Parcel.build; 1 on a GPU
    uses_host_memory: bool  # what lies in host memory need not be brought

    def alloc(self, size_bytes: int) -> torch.Tensor:
        """Device memory as uint8, aligned to at least 512 bytes on a GPU."""

    def alloc_host(self, size_bytes: int) -> HostBlock:
        """Host memory that may be page-locked later."""

    def can_copy_from(self, block: HostBlock) -> bool:
        """Whether copies out of ``block`` run on their own; else they must pass a ring that can."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Queue a copy of equal sizes; ``source`` is read when the copy runs, not now."""

    def run(self, work: Callable[[], T], stream: Stream) -> T:
        """Queue ``work`` (kernels of a cast, a merge or a block) and return what it returned."""

    def record(self, stream: Stream, fence: Fence) -> Any:
        """Mark the place the stream has been filled to."""

    def wait(self, stream: Stream, mark: Any, fence: Fence) -> None:
        """Hold the stream (not the host) until ``mark`` was passed."""

    def synchronize(self, mark: Any, fence: Fence) -> None:
        """Hold the host until ``mark`` was passed."""

    def retire(self, buffer: torch.Tensor, stream: Stream) -> None:
        """Say that what ``buffer`` holds is dead from this place of the stream on (fakes poison it)."""

    def free(self, buffer: torch.Tensor | HostBlock) -> None:
        """Give memory back now; the caller has waited for whatever used it."""

    def close(self) -> None:
        """Nothing more will be queued."""


class InlineDevice:
    """The CPU: everything happens at once, so no fence has anything to do."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.line_bytes = CACHE_LINE_BYTES
        self.uses_host_memory = True

    def alloc(self, size_bytes: int) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.zeros(size_bytes, dtype=torch.uint8)

    def alloc_host(self, size_bytes: int) -> HostBlock:
        return HostBlock(size_bytes)

    def can_copy_from(self, block: HostBlock) -> bool:
        return True

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        target.copy_(source)

    def run(self, work: Callable[[], T], stream: Stream) -> T:
        return work()

    def record(self, stream: Stream, fence: Fence) -> Any:
        return None

    def wait(self, stream: Stream, mark: Any, fence: Fence) -> None:
        return None

    def synchronize(self, mark: Any, fence: Fence) -> None:
        return None

    def retire(self, buffer: torch.Tensor, stream: Stream) -> None:
        return None

    def free(self, buffer: torch.Tensor | HostBlock) -> None:
        if isinstance(buffer, HostBlock):
            buffer.close()

    def close(self) -> None:
        return None


class CudaDevice:
    """One NVIDIA GPU: copies on a stream of their own, blocks on whatever stream is current when they are queued."""

    def __init__(self, torch_device: torch.device, report: Callable[[str], None] = lambda message: None) -> None:
        self.torch_device = torch_device
        self.line_bytes = 1
        self.uses_host_memory = False
        self._copy_stream = torch.cuda.Stream(torch_device)  # type: ignore[no-untyped-call]
        pins = CudaRegistrar()
        limit = probe_pin_limit(pins, host_memory().budget_bytes) if hides_its_pin_limit() else None
        self._registrar = LimitedRegistrar(pins, report, limit)

    def alloc(self, size_bytes: int) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self.torch_device)

    def alloc_host(self, size_bytes: int) -> HostBlock:
        return HostBlock(size_bytes, self._registrar)

    def can_copy_from(self, block: HostBlock) -> bool:
        return block.is_pinned

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with torch.cuda.stream(self._stream(stream)):
            target.copy_(source, non_blocking=True)

    def run(self, work: Callable[[], T], stream: Stream) -> T:
        with torch.cuda.stream(self._stream(stream)):
            return work()

    def record(self, stream: Stream, fence: Fence) -> torch.cuda.Event:
        # Blocking: reading threads wait for it, and would otherwise spin on cores that somebody needs.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream(stream))
        return event

    def wait(self, stream: Stream, mark: Any, fence: Fence) -> None:
        if mark is not None:
            self._stream(stream).wait_event(mark)

    def synchronize(self, mark: Any, fence: Fence) -> None:
        if mark is not None:
            mark.synchronize()

    def retire(self, buffer: torch.Tensor, stream: Stream) -> None:
        return None

    def free(self, buffer: torch.Tensor | HostBlock) -> None:
        if isinstance(buffer, HostBlock):
            buffer.close()

    def close(self) -> None:
        self._copy_stream.synchronize()

    def _stream(self, stream: Stream) -> torch.cuda.Stream:
        return self._copy_stream if stream is Stream.COPY else torch.cuda.current_stream(self.torch_device)


def open_device(torch_device: torch.device | str, report: Callable[[str], None] = lambda message: None) -> Device:
    """The device for a torch device: ``cpu`` or ``cuda[:n]``; ``report`` is told if page-locking is refused.

    Raises ValueError for any other device.
    """
    where = torch.device(torch_device)
    if where.type == "cpu":
        return InlineDevice()
    if where.type == "cuda":
        return CudaDevice(where, report)
    raise ValueError(f"device {where}: only cpu and cuda can run blocks")
