"""A name for a part's weights that is quick to compute: headers, and the ends of each file. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from yellowsound.checkpoint import Component

SAMPLE_BYTES = 65_536


def fingerprint(component: Component) -> str:
    """16 hex digits of names, dtypes, shapes, and the first and last 64 KiB of every weight file.

    It tells trainings and re-uploads apart; it is no checksum: a byte changed in the middle goes unseen.
    """
    digest = hashlib.sha256(component.class_name.encode())
    for tensor in sorted(component.tensors.values(), key=lambda t: t.name):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape};".encode())
    for file in sorted({t.file for t in component.tensors.values()}):
        digest.update(_ends(file))
    return digest.hexdigest()[:16]


def _ends(file: Path) -> bytes:
    with open(file, "rb") as stream:
        first = stream.read(SAMPLE_BYTES)
        stream.seek(max(0, file.stat().st_size - SAMPLE_BYTES))
        return first + stream.read(SAMPLE_BYTES)
