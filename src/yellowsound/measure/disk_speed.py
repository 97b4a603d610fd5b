"""How fast weights come off a disk: large O_DIRECT reads by a few threads, as the conveyor reads them."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES, THREADS = 64 << 20, 4  # as the conveyor reads
TEST_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """``bytes_per_second`` over ``read_bytes`` of ``file``; ``is_direct`` False: the page cache may have helped.

    ``file`` is the folder where what was read was written there for the purpose and is gone again.
    """

    file: str
    read_bytes: int
    bytes_per_second: float
    is_direct: bool


def disk_speed(place: Path, *, seconds: float = 4.0, test_bytes: int = TEST_FILE_BYTES) -> DiskSpeed:
    """Read the largest weight file under ``place``, or a file written there and removed, for at most ``seconds``.

    Raises OSError, which names ``place``, when nothing can be read or written there.
    """
    try:
        with _file_to_read(place, test_bytes) as (file, named):
            return _measure(file, named, seconds)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(place)) from error


def _measure(file: Path, named: Path, seconds: float) -> DiskSpeed:
    size = file.stat().st_size // CHUNK_BYTES * CHUNK_BYTES or file.stat().st_size
    descriptor, is_direct = _open(file)
    try:
        began = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            jobs = [pool.submit(_read, descriptor, size, n, began + seconds) for n in range(THREADS)]
            read = sum(job.result() for job in jobs)
        return DiskSpeed(str(named), read, read / (time.perf_counter() - began), is_direct)
    finally:
        os.close(descriptor)


def _read(descriptor: int, size: int, thread: int, until: float) -> int:
    """Every THREADS-th chunk, once, until the file or the time ends."""
    total = 0
    with mmap.mmap(-1, CHUNK_BYTES) as buffer:
        buffer.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))
        for offset in range(thread * CHUNK_BYTES, size, THREADS * CHUNK_BYTES):
            total += os.preadv(descriptor, [buffer], offset)
            if time.perf_counter() > until:
                break
    return total


def _open(file: Path) -> tuple[int, bool]:
    try:
        return os.open(file, os.O_RDONLY | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor, False


@contextmanager
def _file_to_read(place: Path, test_bytes: int) -> Iterator[tuple[Path, Path]]:
    """The file, and what people are told: the folder where the file is one of our own."""
    if place.is_file():
        yield place, place
        return
    stored = sorted(place.rglob("*.safetensors"), key=lambda p: p.stat().st_size if p.exists() else 0)
    if stored and stored[-1].stat().st_size >= test_bytes:
        yield stored[-1], stored[-1]
        return
    with tempfile.NamedTemporaryFile(dir=place, prefix=".yellowsound-", suffix=".speed") as file:
        block = os.urandom(CHUNK_BYTES)
        for _ in range(max(test_bytes // CHUNK_BYTES, 1)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name), place
