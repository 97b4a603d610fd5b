"""Mp4Writer: takes frames while they arrive, encodes them in a thread, and gives the file its name when it is whole.

Knows the thread and the order of things. The encoding is in mp4.py, the sound's length and level in soundtrack.py,
names and overwriting in destination.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import numpy as np
import numpy.typing as npt

from yellowsound.request import RequestError
from yellowsound.stages.destination import check_destination, check_whole, create_temporary, publish
from yellowsound.stages.mp4 import AAC_RATES, Mp4Encoder, exact_frame_rate, tags_for
from yellowsound.stages.soundtrack import check_level, check_waveform, fit, whole_aac_samples

__all__ = ["Mp4Writer", "check_destination"]

QUEUED_FRAMES = 24  # 30 MB at 864x480: enough for a chunk of the decoder, too little to matter
MIN_FRAME_RATE, MAX_FRAME_RATE = 0.1, 1000.0

_Work = Callable[[Mp4Encoder], None]


class Mp4Writer:
    """Writes one clip to ``path``: H.264 with AAC, encoded by a thread while later frames are still being made.

    width, height: even pixels. num_frames: exactly as many frames must come. frame_rate: frames a second; 23.976 and
    its kin mean 24000/1001. sample_rate: hertz, or None for no sound; mono stays mono. metadata: a JSON object, kept
    in the ``comment`` tag. audio_level: None leaves the sound as decoded, else a target RMS in dBFS (-70 to 0).

    Nothing appears under ``path`` before ``close``; with an error or ``abort`` nothing ever does. Raises
    FileExistsError (unless ``overwrite``), RequestError or OSError before anything is encoded; OSError from
    ``write_frames``, ``write_audio`` or ``close`` when the disk fails.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        width: int,
        height: int,
        num_frames: int,
        frame_rate: float,
        sample_rate: int | None,
        metadata: Mapping[str, Any],
        overwrite: bool = False,
        audio_level: float | None = None,
    ) -> None:
        self.path = Path(path)
        _check_settings(width, height, num_frames, frame_rate, sample_rate)
        check_level(audio_level)
        check_destination(self.path, overwrite)
        self._overwrite, self._audio_level = overwrite, audio_level
        self._shape, self._num_frames, self._sample_rate = (height, width, 3), num_frames, sample_rate
        rate = exact_frame_rate(frame_rate)
        self._samples = _sound_samples(num_frames, rate, sample_rate)
        tags = tags_for(metadata)
        temporary, self._held = create_temporary(self.path.parent)
        self._new_encoder = partial(
            Mp4Encoder,
            temporary,
            width=width,
            height=height,
            frame_rate=rate,
            sample_rate=sample_rate,
            tags=tags,
        )
        self._frames_given, self._sound_given, self._done = 0, False, False
        self._error: BaseException | None = None
        self._queue: queue.Queue[_Work | None] = queue.Queue(QUEUED_FRAMES)
        self._stopping = threading.Event()
        self._temporary = temporary
        self._thread = threading.Thread(target=self._encode, name="yellowsound-mp4", daemon=True)
        self._thread.start()

    def write_audio(self, waveform: npt.ArrayLike) -> None:
        """Hand in the whole sound, once, before or after the frames: float32 (1 or 2 channels, samples), -1 to 1.

        It is cut to the whole AAC frames that fit the picture, or padded with silence up to them; the end is faded.
        """
        if self._sample_rate is None or self._sound_given:
            raise ValueError("sound was already written" if self._sound_given else "this clip has no sound track")
        sound = fit(check_waveform(waveform), self._samples, self._sample_rate, self._audio_level)
        self._sound_given = True
        self._put(lambda encoder: encoder.encode_sound(sound))

    def write_frames(self, frames: npt.NDArray[np.uint8]) -> None:
        """Hand in the next frames, RGB uint8 (n, height, width, 3); waits while the encoder is far behind."""
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1:] != self._shape:
            raise ValueError(f"frames are {frames.dtype} {frames.shape}: uint8 (n, {self._shape}) is needed")
        if self._frames_given + len(frames) > self._num_frames:
            raise ValueError(f"{self._frames_given + len(frames)} frames for a clip of {self._num_frames}")
        self._frames_given += len(frames)
        for frame in frames:
            self._put(partial(_encode_frame, np.array(frame, order="C")))  # a copy: the caller may reuse its buffer

    def close(self) -> Path:
        """Finish the file and give it its name; returns the path. A second call does nothing."""
        if self._done:
            return self.path
        try:
            self._check_complete()
            self._queue.put(None)
            self._thread.join()
            self._raise_error()
            with self._named_errors():
                check_whole(self._temporary)
                publish(self._temporary, self.path, self._overwrite)
        except BaseException:
            self.abort()
            raise
        os.close(self._held)
        self._done = True
        return self.path

    def abort(self) -> None:
        """Stop encoding and leave no file; after ``close`` or a second time it does nothing."""
        if self._done:
            return
        self._done = True
        self._stopping.set()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._temporary.unlink(missing_ok=True)
        os.close(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _put(self, work: _Work) -> None:
        if self._done:
            raise ValueError(f"{self.path.name} is closed")
        self._raise_error()
        self._queue.put(work)

    def _encode(self) -> None:
        """The thread: takes work until None comes. After an error it goes on taking, so that nobody waits for it."""
        try:
            encoder = self._new_encoder()
        except BaseException as error:
            self._fail(error)
            self._take_until_end()
            return
        try:
            self._take_until_end(encoder)
            if not self._stopping.is_set():
                encoder.finish()
        except BaseException as error:
            self._fail(error)
        encoder.discard()

    def _take_until_end(self, encoder: Mp4Encoder | None = None) -> None:
        while (work := self._queue.get()) is not None:
            if self._stopping.is_set() or encoder is None:
                continue
            try:
                work(encoder)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._stopping.set()

    def _check_complete(self) -> None:
        self._raise_error()
        if self._frames_given != self._num_frames:
            raise ValueError(f"{self.path.name}: {self._frames_given} of {self._num_frames} frames were written")
        if self._sample_rate is not None and not self._sound_given:
            raise ValueError(f"{self.path.name}: a sound track was announced but no sound was written")

    def _raise_error(self) -> None:
        if self._error is not None:
            with self._named_errors():
                raise self._error

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except (OSError, av.error.FFmpegError) as error:
            code = getattr(error, "errno", None) or errno.EIO
            raise OSError(code, f"cannot write {self.path}: {os.strerror(code).lower()}") from error


def _check_settings(width: int, height: int, num_frames: int, frame_rate: float, sample_rate: int | None) -> None:
    for name, side in (("width", width), ("height", height)):
        if side < 2 or side % 2:
            raise RequestError(name, side, "H.264 needs even sides", max(2, side - side % 2))
    if num_frames < 1:
        raise RequestError("num_frames", num_frames, "a clip has at least one frame", 1)
    if not MIN_FRAME_RATE <= frame_rate <= MAX_FRAME_RATE:
        raise RequestError("frame_rate", frame_rate, f"must be from {MIN_FRAME_RATE:g} to {MAX_FRAME_RATE:g}")
    if sample_rate is not None and sample_rate not in AAC_RATES:
        nearest = min(AAC_RATES, key=lambda rate: abs(rate - sample_rate))
        raise RequestError("sample_rate", sample_rate, "is no sample rate of AAC", nearest)


def _sound_samples(num_frames: int, frame_rate: Fraction, sample_rate: int | None) -> int:
    if sample_rate is None:
        return 0
    samples = whole_aac_samples(num_frames, frame_rate, sample_rate)
    if not samples:
        raise RequestError(
            "num_frames",
            num_frames,
            f"at {float(frame_rate):g} frames a second is too short for any sound: turn it off",
        )
    return samples


def _encode_frame(frame: npt.NDArray[np.uint8], encoder: Mp4Encoder) -> None:
    encoder.encode_frame(frame)
