"""Large files of the hub in pieces, so that a killed download goes on where it was: huggingface_hub starts a file anew.

A file grows beside its place in the cache as ``NAME.pieces``; ``NAME.done`` lists the pieces that are in it. When all
are, its SHA-256 is compared with the hub's and it takes its name; huggingface_hub then finds it as its own.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIECE_BYTES = 64 << 20
LARGE_BYTES = 256 << 20  # smaller files are left to huggingface_hub
THREADS = 8

OnBytes = Callable[[int, int], None]  # there now, of all


class DamagedDownload(RuntimeError):
    """A finished file whose bytes are not the hub's; it was removed."""


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file to fetch: where the hub has it, where the cache wants it, its bytes and its SHA-256."""

    url: str
    blob: Path
    size_bytes: int
    sha256: str

    @property
    def growing(self) -> Path:
        return self.blob.with_name(f"{self.blob.name}.pieces")

    @property
    def journal(self) -> Path:
        return self.blob.with_name(f"{self.blob.name}.done")

    @property
    def pieces(self) -> int:
        return -(-self.size_bytes // PIECE_BYTES)

    def piece_bytes(self, index: int) -> int:
        return min(PIECE_BYTES, self.size_bytes - index * PIECE_BYTES)

    def done(self) -> set[int]:
        """Pieces that an earlier run left; none if they were of another size."""
        try:
            size, *lines = self.journal.read_text().split()
            there = self.growing.exists() and int(size) == PIECE_BYTES
            return {int(line) for line in lines} if there else set()
        except (OSError, ValueError):
            return set()

    def missing_bytes(self) -> int:
        """What is still to be fetched."""
        return self.size_bytes - sum(self.piece_bytes(index) for index in self.done())


def fetch(file: LargeFile, endpoint: str | None, on_bytes: OnBytes | None = None) -> None:
    """Fetch what is missing of ``file`` and put it in its place. Raises DamagedDownload, httpx and OS errors."""
    file.blob.parent.mkdir(parents=True, exist_ok=True)
    done = file.done()
    if not done:
        file.journal.write_text(f"{PIECE_BYTES}\n")
        file.growing.unlink(missing_ok=True)
    writer = _Writer(file, on_bytes)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            missing = [index for index in range(file.pieces) if index not in done]
            jobs = [pool.submit(_fetch_piece, file, index, endpoint, writer) for index in missing]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        writer.close()
    _finish(file)


class _Writer:
    """Puts pieces into the growing file and notes them, in that order."""

    def __init__(self, file: LargeFile, on_bytes: OnBytes | None) -> None:
        self._file, self._on_bytes = file, on_bytes
        self._lock = threading.Lock()
        self._descriptor = os.open(file.growing, os.O_RDWR | os.O_CREAT, 0o644)
        os.truncate(self._descriptor, file.size_bytes)
        self._there = file.size_bytes - file.missing_bytes()

    def put(self, index: int, data: memoryview) -> None:
        offset = index * PIECE_BYTES
        size = len(data)
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written
        os.fdatasync(self._descriptor)  # a journal must never promise what a crash has lost
        with self._lock:
            with self._file.journal.open("a") as journal:
                journal.write(f"{index}\n")
            self._there += size
            if self._on_bytes is not None:
                self._on_bytes(self._there, self._file.size_bytes)

    def close(self) -> None:
        os.close(self._descriptor)


def _fetch_piece(file: LargeFile, index: int, endpoint: str | None, writer: _Writer) -> None:
    """One piece, through a link asked for now: signed ones expire within the hour."""
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers()
    place = get_hf_file_metadata(file.url, endpoint=endpoint).location
    if _host(place) != _host(file.url):
        headers.pop("authorization", None)  # a signed link needs no token, and other hosts must not see it
    begin, size = index * PIECE_BYTES, file.piece_bytes(index)
    buffer = _Bounded(size)
    headers["Range"] = f"bytes={begin}-{begin + size - 1}"
    http_get(place, buffer, headers=headers, expected_size=size, tqdm_class=_silent_bar())
    writer.put(index, buffer.getbuffer())


class _Bounded(io.BytesIO):
    """Room for one piece: a server that ignores Range must not fill the memory with the whole file."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._room = size

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._room:
            raise OSError("the server sent more than was asked for: it, or a proxy, ignores the Range header")
        return super().write(data)


def _finish(file: LargeFile) -> None:
    digest = hashlib.sha256()
    with file.growing.open("rb", buffering=0) as stream:
        while part := stream.read(8 << 20):
            digest.update(part)
    file.journal.unlink(missing_ok=True)
    if digest.hexdigest() != file.sha256:
        file.growing.unlink()
        raise DamagedDownload(f"{file.blob.name[:12]}: the bytes that arrived are not the hub's; they were removed")
    file.growing.replace(file.blob)


def _silent_bar() -> type:
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):  # type: ignore[misc,unused-ignore]
        """A bar that shows nothing: eight at once would."""

        def __init__(self, *arguments: object, **settings: object) -> None:
            super().__init__(*arguments, **{**settings, "disable": True})

    return Silent


def _host(url: str) -> str:
    return url.split("/", 3)[2]
