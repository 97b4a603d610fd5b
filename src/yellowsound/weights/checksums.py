"""Whether downloaded files are still the hub's: a hub cache names every large file by its SHA-256. No torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from yellowsound.checkpoint import Checkpoint

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES = 8 << 20


def hub_files(checkpoint: Checkpoint) -> dict[Path, str]:
    """The weight files of ``checkpoint`` whose SHA-256 is known, with it: links into a hub cache's blobs."""
    files = {entry.file for part in checkpoint.components.values() for entry in part.tensors.values()}
    known = {file: file.resolve().name for file in files if file.is_symlink()}
    return {file: name for file, name in sorted(known.items()) if _SHA256.fullmatch(name)}


def changed_files(files: dict[Path, str]) -> Iterator[Path]:
    """Those of ``files`` whose bytes are not the hub's. Reads every byte."""
    for file, expected in files.items():
        if _sha256(file) != expected:
            yield file


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
