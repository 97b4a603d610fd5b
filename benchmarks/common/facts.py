"""Facts of the machine that every row names, and the counters that a row is made of."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from common import ROOT


def facts(commit: str | None) -> dict[str, Any]:
    """Commit, time, card, driver, versions and host."""
    return {"commit": commit or _commit(), "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **_machine()}


@cache
def _machine() -> dict[str, Any]:
    card = _ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").split(", ")
    known = len(card) == 2
    return {
        "gpu": card[0] if known else "none (CPU)",
        "driver": card[1].splitlines()[0] if known else None,
        "versions": {"python": platform.python_version(), **_versions()},
        "host": {"cores": os.cpu_count(), "kernel": platform.release(), "mem_total_bytes": meminfo("MemTotal")},
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("torch", "diffusers", "accelerate", "transformers", "triton", "mmgp", "yellowsound"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    try:
        import torch

        found |= {"cuda": torch.version.cuda, "torch": torch.__version__}
        if torch.cuda.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    except ImportError:
        pass
    return found


def _commit() -> str:
    found = _ask("git", "-C", str(ROOT), "rev-parse", "HEAD")
    dirty = _ask("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
    return f"{found or 'unknown'}{' with changes' if dirty else ''}"


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def meminfo(field: str) -> int:
    """A line of /proc/meminfo in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def read_bytes() -> int:
    """What this process has made the disk read so far, page cache hits left out."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def process_memory() -> dict[str, int]:
    """Highest resident size of this process, and what of it lies in swap now."""
    swap = next((line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSwap")), "")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_resident_bytes": peak, "swapped_bytes": int(swap.split()[1]) * 1024 if swap else 0}
