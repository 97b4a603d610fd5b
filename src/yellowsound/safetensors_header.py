"""What a .safetensors file says about itself: every tensor's name, dtype, shape and place, checked against the file.

Reads the JSON header only; no weight is read and neither torch nor the safetensors package is needed.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own reader
DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
}  # fmt: skip
DOWNLOAD_AGAIN = "download this file again"
_LFS_MARK = b"version https://git-lfs"


class CheckpointError(ValueError):
    """A checkpoint that must not be used: one line naming file, found, expected and remedy."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One stored tensor: where its bytes lie in which file. ``dtype`` is safetensors' name (F32, BF16, ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset_bytes: int  # from the start of the file
    size_bytes: int


def refuse(file: Path, found: str, expected: str, remedy: str) -> NoReturn:
    """Raise CheckpointError as one line: file, found, expected, remedy."""
    line = f"{file}: found {found}; expected {expected}; {remedy}"
    raise CheckpointError(" ".join(line.split("\n")))


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of ``file`` by name, offsets proved gapless up to the last byte. Raises CheckpointError.

    Refused: missing, empty, LFS pointer, cut or damaged header, unknown dtype, size that does not follow from shape
    and dtype, overlapping or gapped tensors, fewer or more bytes than the header accounts for.
    """
    file_bytes, raw = _raw_header(file)
    data_start = 8 + len(raw)
    document = _parse(file, raw)
    document.pop("__metadata__", None)
    entries = {name: _entry(file, name, stored, data_start) for name, stored in document.items()}
    _check_gapless(file, entries, data_start, file_bytes)
    return entries


def check_not_pointer(file: Path) -> None:
    """Refuse a small text file that stands where git-lfs should have put the real one."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_LFS_MARK))
    except OSError as error:
        refuse(file, _reason(file, error), "a readable file", DOWNLOAD_AGAIN)
    if start == _LFS_MARK:
        refuse(file, "a git-lfs pointer", "the file itself", "run `git lfs pull` in the checkpoint's folder")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from ``file``. Raises CheckpointError when it is missing, a pointer or no object."""
    check_not_pointer(file)
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse(file, f"no readable JSON ({str(error).splitlines()[0]})", "a JSON object", DOWNLOAD_AGAIN)
    if not isinstance(document, dict):
        refuse(file, f"a JSON {type(document).__name__}", "a JSON object", DOWNLOAD_AGAIN)
    return document


def _raw_header(file: Path) -> tuple[int, bytes]:
    check_not_pointer(file)
    file_bytes = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            refuse(file, f"{file_bytes} bytes", "a safetensors file", DOWNLOAD_AGAIN)
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > MAX_HEADER_BYTES:
            refuse(file, f"a header of {header_bytes} bytes", f"at most {MAX_HEADER_BYTES}", DOWNLOAD_AGAIN)
        if 8 + header_bytes > file_bytes:
            refuse(file, f"{file_bytes} bytes", f"a header alone of {8 + header_bytes}", DOWNLOAD_AGAIN)
        return file_bytes, stream.read(header_bytes)


def _parse(file: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except ValueError as error:
        refuse(file, f"a header that is no JSON ({error})", "a safetensors header", DOWNLOAD_AGAIN)
    if not isinstance(document, dict):
        refuse(file, "a header that is no JSON object", "a safetensors header", DOWNLOAD_AGAIN)
    return document


def _entry(file: Path, name: str, stored: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = stored["dtype"], stored["shape"], stored["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        refuse(file, f"no dtype, shape and two offsets for {name}", "all three", DOWNLOAD_AGAIN)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        refuse(file, f"shape {shape} and offsets {begin}, {end} for {name}", "whole numbers", DOWNLOAD_AGAIN)
    if dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        refuse(file, f"dtype {dtype!r} for {name}", f"one of {known}", "use a checkpoint in F32, BF16 or F16")
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != size:
        refuse(file, f"{end - begin} bytes for {name}", f"{size} of {dtype} {list(shape)}", DOWNLOAD_AGAIN)
    return TensorEntry(name, dtype, tuple(shape), file, data_start + begin, size)


def _check_gapless(file: Path, entries: dict[str, TensorEntry], data_start: int, file_bytes: int) -> None:
    position = data_start
    for entry in sorted(entries.values(), key=lambda e: (e.offset_bytes, e.size_bytes)):
        if entry.offset_bytes != position:
            kind = "overlapping" if entry.offset_bytes < position else "a gap before"
            refuse(
                file,
                f"{kind} tensor {entry.name} at {entry.offset_bytes}",
                f"it at {position}",
                DOWNLOAD_AGAIN,
            )
        position += entry.size_bytes
    if position != file_bytes:
        kind = "cut short" if file_bytes < position else "too long"
        refuse(file, f"{file_bytes} bytes ({kind})", f"{position} bytes", DOWNLOAD_AGAIN)


def _reason(file: Path, error: OSError) -> str:
    if file.is_symlink() and not file.exists():
        return "a link to a file that is not there (an unfinished download)"
    return "nothing" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
