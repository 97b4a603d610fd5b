"""What a worker says about its memory, without importing anything the engine has not imported."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from yellowsound.serve.worker_protocol import Beat

_PAGE_BYTES = resource.getpagesize()


def memory_beat() -> Beat:
    """Resident memory now and at its peak, and the peak of the CUDA allocator, in bytes."""
    return Beat(rss_bytes=_rss_bytes(), rss_peak_bytes=_rss_peak_bytes(), vram_peak_bytes=vram_peak_bytes())


def vram_peak_bytes() -> int:
    """Peak of torch's CUDA allocator since it was last reset; 0 without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.max_memory_allocated())


def reset_vram_peak() -> None:
    """Start a new measurement of the CUDA allocator's peak."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def free_vram_bytes() -> int | None:
    """Free memory of the card in use, or None without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.mem_get_info()[0])


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _rss_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
