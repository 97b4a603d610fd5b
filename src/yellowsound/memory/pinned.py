"""Host memory for homes and rings: anonymous huge pages, page-locked by registration at their exact size.

torch's own pinned pool rounds every block up to a power of two and keeps what is freed; this module does neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Callable
from typing import Protocol

import torch

HUGE_BYTES = 2 * 1024 * 1024
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python has no name for it


class Registrar(Protocol):
    """Page-locks memory for the GPU; every call may be refused."""

    def register(self, address: int, size_bytes: int) -> bool: ...

    def unregister(self, address: int) -> None: ...


class LimitedRegistrar:
    """Stops asking once the system has refused, or past ``limit_bytes``; says so once through ``report``."""

    def __init__(self, inner: Registrar, report: Callable[[str], None], limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.report = report
        self._inner = inner
        self._sizes: dict[int, int] = {}
        self._is_refused = False
        self._lock = threading.Lock()

    def register(self, address: int, size_bytes: int) -> bool:
        with self._lock:
            total = sum(self._sizes.values())
            fits = self.limit_bytes is None or total + size_bytes <= self.limit_bytes
            if not self._is_refused and fits and self._inner.register(address, size_bytes):
                self._sizes[address] = size_bytes
                return True
            if not self._is_refused:
                self._is_refused = True
                self.report(
                    f"page-locking was refused after {total / 2**30:.2f} GiB; further blocks stay in ordinary memory "
                    "and are copied through the ring"
                )
            return False

    def unregister(self, address: int) -> None:
        with self._lock:
            del self._sizes[address]
            self._inner.unregister(address)


class CudaRegistrar:
    """cudaHostRegister through torch; a refusal is consumed, so that no later kernel launch reports it."""

    def __init__(self) -> None:
        self._runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def register(self, address: int, size_bytes: int) -> bool:
        if int(self._runtime.cudaHostRegister(address, size_bytes, 0)) == 0:
            return True
        _clear_cuda_error()
        return False

    def unregister(self, address: int) -> None:
        if int(self._runtime.cudaHostUnregister(address)) != 0:
            _clear_cuda_error()


def hides_its_pin_limit() -> bool:
    """Whether this is WSL2, where page-locking stops at an unannounced amount and must be probed."""
    try:
        with open("/proc/version") as version:
            return "microsoft" in version.read().lower()
    except OSError:
        return False


def _clear_cuda_error() -> None:
    """Ask the already loaded runtime for its last error: torch has no call for it."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libcudart" in line}
    for path in paths:
        ctypes.CDLL(path).cudaGetLastError()


class HostBlock:
    """``size_bytes`` of anonymous memory, 2 MiB aligned; ``tensor`` is its uint8 view.

    ``pin()`` says whether the GPU may copy from it without a stop on the way. After ``close()`` a view that is still
    alive keeps the pages (not the registration) until it dies.
    """

    def __init__(self, size_bytes: int, registrar: Registrar | None = None) -> None:
        self.size_bytes = size_bytes
        self.is_pinned = False
        self._registrar = registrar
        # Private: Python's default is shared memory, which gets no huge pages.
        pages = mmap.mmap(-1, max(size_bytes, 1) + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages is slower, not wrong
            pages.madvise(mmap.MADV_HUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._offset = -base % HUGE_BYTES
        self.address = base + self._offset
        with torch.inference_mode(False):
            view = torch.frombuffer(pages, dtype=torch.uint8, count=max(size_bytes, 1), offset=self._offset)
        # The tensor's storage refers to the mapping, which therefore lives exactly as long as its last view.
        self._pages: mmap.mmap | None = pages
        self.tensor: torch.Tensor | None = view[:size_bytes]

    @property
    def bytes(self) -> torch.Tensor:
        """The whole block as a uint8 tensor; raises once it is closed."""
        if self.tensor is None:
            raise ValueError("this host block is closed")
        return self.tensor

    def window(self, start: int, size_bytes: int) -> memoryview:
        """A writable view for a read call; release it (``with``) before ``close()``."""
        if self._pages is None:
            raise ValueError("this host block is closed")
        return memoryview(self._pages)[self._offset + start : self._offset + start + size_bytes]

    def populate(self) -> None:
        """Touch every page: registering pages that exist is several times quicker than registering holes."""
        try:
            pages = -(-self.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            assert self._pages is not None
            self._pages.madvise(_POPULATE_WRITE, self._offset, pages)
        except (OSError, ValueError):
            self.bytes.zero_()

    def pin(self) -> bool:
        """Page-lock the block. False when there is no GPU or the system refuses: it then stays pageable."""
        if self._registrar is not None and not self.is_pinned and self.size_bytes:
            self.is_pinned = self._registrar.register(self.address, self.size_bytes)
            if self.is_pinned and torch.cuda.is_available() and not self.bytes.is_pinned():
                raise RuntimeError(f"{self.size_bytes} bytes were registered, but torch does not see them as pinned")
        return self.is_pinned

    def close(self) -> None:
        """Unregister, then let go of the pages; they are unmapped with their last view.

        ``mmap.close()`` is not called: a tensor does not hold the buffer, so a forgotten view would crash.
        """
        if self.tensor is None:
            return
        self.tensor = None
        if self.is_pinned and self._registrar is not None:
            self._registrar.unregister(self.address)
        self.is_pinned = False
        self._pages = None


class PinWhenFull:
    """Called after each of ``reads`` reads into a block; after the last one every page exists, and it is pinned."""

    def __init__(self, block: HostBlock, reads: int) -> None:
        self._block, self._left, self._lock = block, reads, threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._block.pin()


def probe_pin_limit(registrar: Registrar, wanted_bytes: int, step_bytes: int = 256 * 1024 * 1024) -> int:
    """How much may be page-locked: ``wanted_bytes`` if all of it was accepted, else 80 % of what was.

    The only honest way where a limit is hidden (WSL2, containers). Everything probed is given back.
    """
    blocks: list[HostBlock] = []
    accepted = 0
    try:
        while accepted < wanted_bytes:
            block = HostBlock(min(step_bytes, wanted_bytes - accepted), registrar)
            blocks.append(block)
            block.populate()
            if not block.pin():
                return accepted * 4 // 5
            accepted += block.size_bytes
        return wanted_bytes
    finally:
        for block in blocks:
            block.close()
