"""Ring: a fixed number of page-locked chunks that disk bytes pass through on their way to the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yellowsound.memory.device import Device, Fence
from yellowsound.memory.pinned import HostBlock


@dataclass(slots=True, eq=False)
class Chunk:
    """One chunk of the ring. ``is_held`` from the moment a read is promised it until its copies are queued."""

    start: int
    is_held: bool = False
    copied: Any = None

    def give_back(self, copied: Any) -> None:
        """Its copies are queued; ``copied`` marks the last of them."""
        self.copied = copied
        self.is_held = False

    def drop(self) -> None:
        """It was promised in vain: the copies of its last bytes may still be waiting, so their mark stays."""
        self.is_held = False


class Ring:
    """``count`` chunks of ``chunk_bytes`` in one block, handed out in turn."""

    def __init__(self, device: Device, chunk_bytes: int, count: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.block: HostBlock = device.alloc_host(chunk_bytes * count)
        if count:
            self.block.populate()
            self.block.pin()
        self._device = device
        self._chunks = [Chunk(start * chunk_bytes) for start in range(count)]
        self._next = 0

    def claim(self) -> Chunk | None:
        """The next chunk, or None while its last bytes are not yet queued for copying."""
        chunk = self._chunks[self._next]
        if chunk.is_held:
            return None
        self._next = (self._next + 1) % len(self._chunks)
        chunk.is_held = True
        return chunk

    def wait_until_copied(self, chunk: Chunk) -> Callable[[], None] | None:
        """What a reading thread does before it overwrites ``chunk``: no stream's wait protects host memory."""
        copied = chunk.copied
        if copied is None:
            return None
        return lambda: self._device.synchronize(copied, Fence.CHUNK_COPIED)

    def close(self) -> None:
        self._device.free(self.block)
