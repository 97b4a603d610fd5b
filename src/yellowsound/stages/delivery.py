"""Delivery: where a clip's MP4 goes, if anywhere, and its writer once the settings are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yellowsound.request import ClipRequest
from yellowsound.stages.mux import Mp4Writer, check_destination
from yellowsound.stages.soundtrack import check_level

UNFINISHED = ("seconds", "peak_vram_bytes", "peak_ram_bytes")  # of the metadata, while frames are still to come


@dataclass(frozen=True, slots=True)
class Delivery:
    """A file's name and what was said about it. ``path`` None: the clip stays in memory."""

    path: Path | None = None
    overwrite: bool = False
    audio_level: float | None = None

    def check(self) -> None:
        """Refuse a name that cannot be written before any work. Raises FileExistsError, RequestError or OSError."""
        check_level(self.audio_level)
        if self.path is not None:
            check_destination(self.path, self.overwrite)

    def open(
        self,
        request: ClipRequest,
        waveform: npt.NDArray[np.float32] | None,
        sample_rate_hz: int,
        metadata: dict[str, Any],
    ) -> Mp4Writer:
        """A writer that already holds the sound and takes frames as they arrive.

        ``metadata`` goes into the file but for seconds and peaks: neither decoding nor muxing is over, so they would
        say too little. The returned clip's metadata has them.
        """
        assert self.path is not None
        assert request.width and request.height and request.num_frames and request.frame_rate
        writer = Mp4Writer(
            self.path,
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            frame_rate=request.frame_rate,
            sample_rate=None if waveform is None else sample_rate_hz,
            metadata={name: value for name, value in metadata.items() if name not in UNFINISHED},
            overwrite=self.overwrite,
            audio_level=self.audio_level,
        )
        if waveform is not None:
            writer.write_audio(waveform)
        return writer
