"""What a finished MP4 really holds, read back from the file: the job object repeats it, and thumbnails come from it."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

THUMBNAIL_SIDE = 480


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """Facts of one file, its first frame as WebP (sides up to 480) and its last as PNG (full size)."""

    path: Path
    facts: dict[str, Any]
    first_frame: bytes
    last_frame: bytes


def read_clip(path: Path) -> ClipFacts:
    """Count, measure and hash the file at ``path``. Raises OSError, av.FFmpegError on what is no clip."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 0)
        has_audio = bool(container.streams.audio)
        first, last, count = None, None, 0
        for frame in container.decode(stream):
            first = first or frame
            last, count = frame, count + 1
        assert first is not None and last is not None
        facts = {"width": first.width, "height": first.height}
        first_frame, last_frame = webp(first.to_ndarray(format="rgb24")), _png(last.to_ndarray(format="rgb24"))
    facts |= {
        "num_frames": count,
        "frame_rate": rate,
        "duration_seconds": count / rate if rate else 0.0,
        "has_audio": has_audio,
        "bytes": path.stat().st_size,
        "sha256": _sha256(path),
    }
    return ClipFacts(path, facts, first_frame, last_frame)


def webp(pixels: npt.NDArray[np.uint8], quality: int = 80) -> bytes:
    """uint8 (height, width, 3) as a WebP whose height is at most 480 and width at most ten times that."""
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL_SIDE * 10, THUMBNAIL_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=2)
    return buffer.getvalue()


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
