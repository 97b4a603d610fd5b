"""What this machine offers: host memory that can be had without swapping, the card, the link and the disk.

Reads /proc, /sys and NVML (or nvidia-smi) under an injectable root; starts nothing on the device, imports no torch.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath

from yellowsound.request import RequestError

GIB = 1 << 30
RESERVE_BYTES = 4 * GIB
RESERVE_SHARE = 0.08
LEAST_BARE_NUMBER = 1 << 20  # smaller ones are gigabytes or megabytes whose unit was forgotten
SYSTEM_BYTES = int(2.5 * GIB)  # what an idle desktop holds, where nothing can be asked

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS |= {f"{p}ib": 1 << s for p, s in zip("kmgt", (10, 20, 30, 40), strict=True)}
_UNITS |= {f"{p}b": 1000**s for p, s in zip("kmgt", (1, 2, 3, 4), strict=True)}
_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str | int, field: str = "size") -> int:
    """``"60GiB"`` or ``"32GB"`` as bytes: GiB is 2**30, GB is 10**9, a bare G is GiB, a bare number is bytes.

    Raises RequestError naming ``field``; also for bare digits under 1 MiB, which lack their unit. An int is bytes.
    """
    try:
        size, bare = _parse(text)
    except ValueError:
        raise RequestError(field, text, "must be a size above zero such as 60GiB or 32GB") from None
    if bare and size < LEAST_BARE_NUMBER:
        raise RequestError(field, text, f"lacks its unit: {bare}{'GiB' if size < 1024 else 'MiB'}?")
    return int(size)


def parse_speed(text: str | int, field: str = "disk_speed") -> int:
    """``"3.5GB/s"`` (``/s`` may be left out) as bytes a second. Raises RequestError as parse_bytes does."""
    try:
        speed, bare = _parse(text.strip().removesuffix("/s") if isinstance(text, str) else text)
    except ValueError:
        raise RequestError(field, text, "must be a speed above zero such as 3.5GB/s") from None
    if bare and speed < LEAST_BARE_NUMBER:
        raise RequestError(field, text, f"lacks its unit: {bare}{'GB/s' if speed < 100 else 'MB/s'}?")
    return int(speed)


def _parse(text: str | int) -> tuple[Fraction, str]:
    """The amount, and its digits where they came without a unit. Raises ValueError."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return Fraction(text), ""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(text)
    amount = Fraction(match[1]) * _UNITS[match[2].lower()]
    if amount < (1 if match[2] else Fraction(1, 1000)):
        raise ValueError(text)
    return amount, "" if match[2] else match[1]


def format_bytes(size: int) -> str:
    """Bytes for people, in binary units: ``22.5 GiB``."""
    if abs(size) >= GIB // 10:
        return f"{size / GIB:.1f} GiB"
    if abs(size) >= 1 << 20:
        return f"{size / (1 << 20):.0f} MiB"
    return f"{size / 1024:.0f} KiB"


def format_need(size: int) -> str:
    """The same rounded up: what must be there is there in the figure that people read."""
    unit = GIB if size >= GIB // 10 else 1 << 20 if size >= 1 << 20 else 1 << 10
    digits = 10 if unit == GIB else 1
    return format_bytes(-(-size * digits // unit) * unit // digits)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory as one process may use it. ``total_bytes`` is MemTotal or the tightest limit, whichever is less.

    available_bytes: what can be taken without swapping or being killed, reserve not deducted. bound: what decides it.
    """

    total_bytes: int
    available_bytes: int
    bound: str

    @property
    def budget_bytes(self) -> int:
        """What may be planned with: available less the reserve."""
        return after_reserve(self.total_bytes, self.available_bytes)


def reserve_bytes(total_bytes: int, available_bytes: int) -> int:
    """Memory left to everybody else: 4 GiB or 8 % of the total, but never more than half of what is available."""
    return min(max(RESERVE_BYTES, int(total_bytes * RESERVE_SHARE)), available_bytes // 2)


def after_reserve(total_bytes: int, available_bytes: int) -> int:
    """What may be planned with of ``available_bytes`` on a host of ``total_bytes``."""
    return available_bytes - reserve_bytes(total_bytes, available_bytes)


def more_memory(budget_bytes: int, total_bytes: int, available_bytes: int) -> int:
    """The least memory that a host needs besides to plan with ``budget_bytes``: the reserve takes its part of it."""
    enough = max(2 * budget_bytes - available_bytes, 0)  # the reserve is never more than half
    return bisect_left(
        range(enough), budget_bytes, key=lambda more: after_reserve(total_bytes + more, available_bytes + more)
    )


def host_memory(root: Path = Path("/")) -> HostMemory:
    """MemAvailable and the tightest memory cgroup (v1 or v2) of this process's chain.

    A cgroup offers limit - (usage - reclaimable page cache): its usage counts cached files that it would give back.
    ``root`` replaces / for tests. Where /proc is missing (not Linux) psutil is asked instead.
    """
    meminfo = _meminfo(root)
    if meminfo is None:
        import psutil

        memory = psutil.virtual_memory()
        return HostMemory(int(memory.total), int(memory.available), "psutil")
    total, available, bound = *meminfo, "MemAvailable"
    for limit, left, name in _cgroups(root):
        total = min(total, limit)
        if left < available:
            available, bound = max(left, 0), name
    return HostMemory(total, available, bound)


def _meminfo(root: Path) -> tuple[int, int] | None:
    """MemTotal and MemAvailable; kernels before 3.14 lack the latter: free plus cached is used."""
    text = _read(root / "proc/meminfo")
    if text is None:
        return None
    values = {m[1]: int(m[2]) * 1024 for m in re.finditer(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    available = values.get("MemAvailable", values.get("MemFree", 0) + values.get("Cached", 0))
    return values["MemTotal"], available


def _cgroups(root: Path) -> Iterator[tuple[int, int, str]]:
    """(limit, bytes left, name) of every limited memory cgroup from this process's own up to the root."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, reader = _mount(root, "cgroup2", "") or "sys/fs/cgroup", _v2
        elif "memory" in controllers.split(","):
            mount, reader = _mount(root, "cgroup", "memory") or "sys/fs/cgroup/memory", _v1
        else:
            continue
        for folder in _chain(root / mount.lstrip("/"), path):
            if (state := reader(folder)) is not None:
                yield (*state, f"cgroup {folder.relative_to(root)}")


def _chain(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and its parents up to the mount. In a container the path may be the host's: see the mount."""
    inside = PurePosixPath(path.lstrip("/"))
    folder = mount / inside
    if ".." in inside.parts or not folder.is_dir():
        folder = mount
    while True:
        yield folder
        if folder == mount:
            return
        folder = folder.parent


def _mount(root: Path, kind: str, controller: str) -> str | None:
    """Where a cgroup hierarchy is mounted, from /proc/self/mountinfo."""
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields = after.split()
        if fields and fields[0] == kind and (not controller or controller in fields[-1].split(",")):
            return before.split()[4]
    return None


def _v2(folder: Path) -> tuple[int, int] | None:
    """Limit and what is left of it in a v2 group: the lower of memory.max and memory.high (above it: throttled)."""
    limits = [int(t) for name in ("max", "high") if (t := _read(folder / f"memory.{name}")) and t.strip() != "max"]
    usage = _read(folder / "memory.current")
    if not limits or usage is None:
        return None
    stat = _stat(folder)
    cache = stat.get("inactive_file", 0) + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)
    return min(limits), min(limits) - max(int(usage) - cache, 0)


def _v1(folder: Path) -> tuple[int, int] | None:
    """The same for v1, where no limit is written as a number near 2**63."""
    limit, usage = _read(folder / "memory.limit_in_bytes"), _read(folder / "memory.usage_in_bytes")
    if limit is None or usage is None or int(limit) >= 1 << 60:
        return None
    stat = _stat(folder)
    cache = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return int(limit), int(limit) - max(int(usage) - cache, 0)


def _stat(folder: Path) -> dict[str, int]:
    """memory.stat. ``file`` is not used: it counts tmpfs, which cannot be given back; the two file LRU lists can."""
    lines = (line.split() for line in (_read(folder / "memory.stat") or "").splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
