"""Caps: a small card by a ballast process, a small host by a memory cgroup, and a host that was touched beforehand."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.facts import meminfo
from common.results import say

BALLAST = Path(__file__).parent.parent / "ballast.py"
TOUCH_PIECE = 256 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14


@contextmanager
def small_card(keep_bytes: int | None) -> Iterator[int | None]:
    """While open, the card has ``keep_bytes`` free for others; yields what it really has. None: no cap."""
    if keep_bytes is None:
        yield None
        return
    command = [sys.executable, str(BALLAST), str(keep_bytes)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None and process.stdout is not None
        answer = process.stdout.readline()
        if not answer.strip().isdigit():
            raise RuntimeError("the ballast process could not take its memory: see its message above")
        say(f"ballast: {int(answer) / 1e9:.2f} GB of the card are left")
        yield int(answer)
        process.stdin.close()
        process.wait(30)
    finally:
        process.kill()


@contextmanager
def small_host(limit_bytes: int | None, name: str) -> Iterator[Path | None]:
    """A memory cgroup (v2) of that size without swap; None where there is none to be had, which is said."""
    group = None
    if limit_bytes is not None:
        try:
            group = _make_group(limit_bytes, name)
        except OSError as error:
            say(f"no memory cgroup: {error}")
    try:
        yield group
    finally:
        if group is not None:
            with contextlib.suppress(OSError):
                group.rmdir()


def _make_group(limit_bytes: int, name: str) -> Path:
    root = _cgroup_root()
    with contextlib.suppress(OSError):  # allowed already, or the write below tells
        (root / "cgroup.subtree_control").write_text("+memory")
    group = root / f"yellowsound-{name}-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.max").write_text(str(limit_bytes))
    except OSError:
        group.rmdir()
        raise
    with contextlib.suppress(OSError):  # a kernel without swap has no such file
        (group / "memory.swap.max").write_text("0")
    return group


def _cgroup_root() -> Path:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind = line.split()[:3]
        if kind == "cgroup2":
            return Path(mounted)
    place = Path("/tmp/yellowsound-cgroup")
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "cgroup2", "none", str(place)], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"cgroup2 is not mounted and cannot be: {done.stderr.strip()}")
    return place


def enter(group: Path | None) -> None:
    """Move this process into the group; before CUDA starts, so that all of its memory is charged there."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def group_figures(group: Path | None) -> dict[str, int | str | None]:
    """What the group was charged, its peak, and how often it ran into its limit."""
    if group is None:
        return {}
    names = ("memory.max", "memory.current", "memory.peak", "memory.swap.current", "memory.events")
    found: dict[str, int | str | None] = {}
    for name in names:
        try:
            text = (group / name).read_text().strip()
        except OSError:
            text = ""
        found[name] = int(text) if text.isdigit() else " ".join(text.split()) or None
    return found


def charged_bytes(group: Path | None) -> int | None:
    return None if group is None else int((group / "memory.current").read_text())


def start_touching(gib: int) -> subprocess.Popen[bytes] | None:
    """Begin to touch that much host memory in a process of its own; wait for it before anything is measured."""
    if not gib:
        return None
    return subprocess.Popen([sys.executable, str(BALLAST.with_name("touch.py")), str(gib << 30)])


def touch(size_bytes: int) -> None:
    """Use that much memory once, then give it back: a virtual machine may have to grow first. For a child process."""
    Path("/proc/self/oom_score_adj").write_text("1000")  # if anything has to go, it is this process
    began, patience = time.perf_counter(), 20
    pieces: list[mmap.mmap] = []
    while len(pieces) < size_bytes // TOUCH_PIECE and patience:
        if meminfo("MemAvailable") < 2 * TOUCH_PIECE:
            patience -= 1
            time.sleep(0.25)
            continue
        piece = mmap.mmap(-1, TOUCH_PIECE)
        with contextlib.suppress(OSError):
            piece.madvise(mmap.MADV_HUGEPAGE)
        piece.madvise(_POPULATE_WRITE)
        pieces.append(piece)
    spent, total = time.perf_counter() - began, meminfo("MemTotal")
    say(f"touched {len(pieces) * TOUCH_PIECE / 2**30:.1f} GiB in {spent:.1f} s; MemTotal {total / 2**30:.1f} GiB")
