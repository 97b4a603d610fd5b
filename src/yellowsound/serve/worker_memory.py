"""What a worker says about its memory, without importing anything the engine has not imported."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Any

from yellowsound.serve.worker_protocol import Beat

_PAGE_BYTES = resource.getpagesize()


def memory_beat() -> Beat:
    """Resident memory now and at its peak, and the peak of the CUDA allocator, in bytes."""
    return Beat(rss_bytes=_rss_bytes(), rss_peak_bytes=_rss_peak_bytes(), vram_peak_bytes=vram_peak_bytes())


def vram_peak_bytes() -> int:
    """Peak of torch's CUDA allocator since it was last reset; 0 without CUDA."""
    cuda = _cuda()
    return int(cuda.max_memory_allocated()) if cuda is not None and cuda.is_initialized() else 0


def reset_vram_peak() -> None:
    """Start a new measurement of the CUDA allocator's peak."""
    cuda = _cuda()
    if cuda is not None and cuda.is_initialized():
        cuda.reset_peak_memory_stats()


def give_back() -> None:
    """Collect what the last job left and return free pages to the system, where the C library can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def free_vram_bytes() -> int | None:
    """Free memory of the card in use, or None without CUDA."""
    cuda = _cuda()
    return int(cuda.mem_get_info()[0]) if cuda is not None and cuda.is_available() else None


def _cuda() -> Any:
    """torch.cuda once torch is wholly imported: another thread may be in the middle of that."""
    torch = sys.modules.get("torch")
    is_whole = torch is not None and not getattr(torch.__spec__, "_initializing", False)
    return getattr(torch, "cuda", None) if is_whole else None


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _rss_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
