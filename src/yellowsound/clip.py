"""Clip: what came out. Frames, sound and what they were made from; how they are named and kept.

Knows arrays and file names. Imports the encoder only when a clip is saved.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_NAME_BYTES = 120


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Clip:
    """A finished clip.

    frames: RGB, uint8 (F, H, W, 3). waveform: float32 (channels, samples) from -1 to 1, or None for no sound.
    sample_rate: hertz. frame_rate: frames a second. metadata: plain JSON values (prompt, seed, settings, checkpoint,
    level, versions). latents: what the engine decoded it from (stages.latents.Latents), else None. Raises ValueError
    where the arrays are of another kind.
    """

    frames: npt.NDArray[np.uint8]
    waveform: npt.NDArray[np.float32] | None
    sample_rate: int
    frame_rate: float
    metadata: dict[str, Any] = field(default_factory=dict)
    latents: Any = None

    def __post_init__(self) -> None:
        if self.frames.dtype != np.uint8 or self.frames.ndim != 4 or self.frames.shape[3] != 3:
            raise ValueError(f"frames are {self.frames.dtype} {self.frames.shape}: uint8 (F, H, W, 3) is needed")
        if self.waveform is not None and (self.waveform.dtype != np.float32 or self.waveform.ndim != 2):
            raise ValueError(
                f"the waveform is {self.waveform.dtype} {self.waveform.shape}: float32 (channels, samples) is needed"
            )

    def __repr__(self) -> str:
        frames, height, width, _ = self.frames.shape
        sound = "no sound" if self.waveform is None else f"sound at {self.sample_rate} Hz"
        return f"Clip({width}x{height}, {frames} frames at {self.frame_rate:g} fps, {sound})"

    @property
    def duration_seconds(self) -> float:
        """Length of the picture."""
        return len(self.frames) / self.frame_rate

    def save(self, path: str | Path, overwrite: bool = False, audio_level: float | None = None) -> Path:
        """Write the clip as an MP4 and return its path; what is written and raised is said at ``Mp4Writer``.

        audio_level: None leaves the sound as decoded, else a target RMS in dBFS from -70 to 0 (peaks stay under -1).
        """
        from yellowsound.stages.mux import Mp4Writer

        count, height, width, _ = self.frames.shape
        with Mp4Writer(
            path,
            width=width,
            height=height,
            num_frames=count,
            frame_rate=self.frame_rate,
            sample_rate=None if self.waveform is None else self.sample_rate,
            metadata=self.metadata,
            overwrite=overwrite,
            audio_level=audio_level,
        ) as writer:
            if self.waveform is not None:
                writer.write_audio(self.waveform)
            writer.write_frames(self.frames)
        return Path(path)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The metadata a clip was saved with, from its MP4. Raises ValueError where there is none, OSError for the file."""
    from yellowsound.stages.mp4 import read_comment

    return read_comment(path)


def slug_for(prompt: str, max_bytes: int = MAX_NAME_BYTES) -> str:
    """``prompt`` as a file name's stem: small ASCII letters, digits and single hyphens; ``clip`` where none remain."""
    ascii_text = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_text).strip("-")[:max_bytes].strip("-")
    return slug or "clip"


def output_path(folder: str | Path, prompt: str, seed: int) -> Path:
    """A new name in ``folder`` for a clip: slug of the prompt, seed, six random hex digits; at most 120 ASCII bytes.

    The random part keeps apart two processes that pick a name in the same second: the file itself comes much later.
    """
    while True:
        tail = f"-{seed}-{secrets.token_hex(3)}.mp4"
        path = Path(folder) / (slug_for(prompt, MAX_NAME_BYTES - len(tail)) + tail)
        if not path.exists():
            return path
