"""One MP4 on its way to disk: H.264 and AAC through PyAV, with the tags that make it play alike everywhere.

Knows the codecs and the container. Knows nothing of threads, temporary names or where the frames come from.
PyAV 18.1 and 19 both work: no time base is compared with None, nothing is read from a closed container.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from yellowsound.stages.soundtrack import AAC_FRAME, Waveform

TITLE_CHARACTERS = 80
AUDIO_BITS_PER_SECOND = 192_000
AAC_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
BT709 = 1  # the same number for matrix, primaries and transfer (ITU-T H.273)
LIMITED_RANGE = 1
MAX_ENCODER_THREADS = 8
# x264 in the form that also phones play: Main profile without B-frames; 3.29 MB for 864x480x121 at 6.4 CPU seconds.
X264 = {"crf": "18", "preset": "fast", "profile": "main", "bf": "0"}
# Faststart: the index comes before the data. An interleave delta of 0 lets sound wait for the picture without limit.
# Edit lists count in the movie time scale: in 1/1000 s they would cut samples off the sound.
CONTAINER = {"movflags": "+faststart", "movie_timescale": "90000", "max_interleave_delta": "0"}
SWSCALE = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


def exact_frame_rate(frame_rate: float | Fraction) -> Fraction:
    """``frame_rate`` as the rational number that is meant: 23.976 is 24000/1001, 29.97 is 30000/1001, 12.5 is 25/2."""
    whole = round(frame_rate)
    if whole == frame_rate:
        return Fraction(whole)
    ntsc = Fraction(round(float(frame_rate) * 1.001) * 1000, 1001)
    if ntsc and abs(float(ntsc) - float(frame_rate)) < 0.005:
        return ntsc
    return Fraction(frame_rate).limit_denominator(1001)


class Mp4Encoder:
    """Encodes one clip into ``path``, which is overwritten; constant frame rate, streams starting at 0.

    width, height: even pixels. sample_rate: hertz, or None for no sound. Errors: av.FFmpegError.
    The container takes no packet before it knows all its streams, so pictures that come before the sound wait encoded.
    """

    def __init__(
        self,
        path: Path,
        *,
        width: int,
        height: int,
        frame_rate: Fraction,
        sample_rate: int | None,
        tags: Mapping[str, str],
    ) -> None:
        self._container = av.open(str(path), "w", format="mp4", options=CONTAINER)
        self._container.metadata.update(tags)
        self._frame_rate, self._sample_rate = frame_rate, sample_rate
        self._frames = 0
        self._reformatter = VideoReformatter()
        self._video = self._add_video(width, height)
        self._waiting: list[Any] | None = None if sample_rate is None else []

    def _add_video(self, width: int, height: int) -> Any:
        stream = self._container.add_stream("libx264", rate=self._frame_rate, options=X264)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        context.time_base = 1 / self._frame_rate
        context.color_range = LIMITED_RANGE
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.thread_count = min(os.cpu_count() or 1, MAX_ENCODER_THREADS)
        return stream

    def encode_frame(self, frame: npt.NDArray[np.uint8]) -> None:
        """Encode one RGB frame, uint8 (height, width, 3)."""
        picture = self._reformatter.reformat(
            av.VideoFrame.from_ndarray(frame, format="rgb24"),
            format="yuv420p",
            interpolation=SWSCALE,
            src_color_range=ColorRange.JPEG,
            dst_color_range=ColorRange.MPEG,
            dst_colorspace=Colorspace.ITU709,
        )
        picture.pts, picture.time_base = self._frames, 1 / self._frame_rate
        self._frames += 1
        self._mux_video(self._video.encode(picture))

    def _mux_video(self, packets: list[Any]) -> None:
        if self._waiting is None:
            self._container.mux(packets)
        else:
            self._waiting.extend(packets)

    def encode_sound(self, waveform: Waveform) -> None:
        """Encode the whole sound at once: float32 (1 or 2 channels, a multiple of 1024 samples)."""
        assert self._sample_rate is not None and self._waiting is not None
        layout = "mono" if waveform.shape[0] == 1 else "stereo"
        stream = self._container.add_stream("aac", rate=self._sample_rate, layout=layout)
        stream.bit_rate = AUDIO_BITS_PER_SECOND
        packets, self._waiting = self._waiting, None
        for start in range(0, waveform.shape[1], AAC_FRAME):
            samples = np.ascontiguousarray(waveform[:, start : start + AAC_FRAME])
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
            # Without a time stamp no edit list is written, and the encoder's priming is played: 23 ms late.
            frame.sample_rate, frame.pts, frame.time_base = self._sample_rate, start, Fraction(1, self._sample_rate)
            packets += stream.encode(frame)
        self._container.mux(packets + stream.encode(None))

    def finish(self) -> None:
        """Flush the picture and write the index; the file is then whole."""
        self._mux_video(self._video.encode(None))
        self._container.close()

    def discard(self) -> None:
        """Close whatever is open, keeping no promise about the file."""
        with contextlib.suppress(Exception):
            self._container.close()


def tags_for(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The MP4 tags: ``comment`` is ``metadata`` as JSON, ``title`` the first 80 characters of its ``prompt``."""
    text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    title = " ".join(str(metadata.get("prompt", "")).split())[:TITLE_CHARACTERS].strip()
    return {"comment": text, **({"title": title} if title else {})}


def read_comment(path: str | Path) -> dict[str, Any]:
    """The JSON object in the ``comment`` tag. Raises ValueError where there is none, OSError for the file itself."""
    missing = ValueError(f"{path}: no yellowsound metadata in this file")
    try:
        with av.open(str(path)) as container:
            text = container.metadata.get("comment", "")
    except av.error.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        raise missing from error
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise missing from error
    if not isinstance(found, dict):
        raise missing
    return found
