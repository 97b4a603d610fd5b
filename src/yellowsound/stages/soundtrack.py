"""The sound as it goes into an MP4: cut to the picture in whole AAC frames, faded at its end, levelled if asked.

Plain numpy. Knows lengths and levels; knows nothing of files or codecs.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from yellowsound.request import RequestError

Waveform = npt.NDArray[np.float32]

AAC_FRAME = 1024  # samples
FADE_SECONDS = 0.010
PEAK_CEILING = 10 ** (-1 / 20)  # -1 dBFS: room for what the codec adds
MIN_LEVEL, MAX_LEVEL = -70.0, 0.0


def whole_aac_samples(num_frames: int, frame_rate: Fraction, sample_rate: int) -> int:
    """Samples in the largest whole number of AAC frames that is no longer than the picture.

    Only whole frames end at the same place in every player and every FFmpeg: the padding of a last, partial one is
    played as silence by some, so the file would be longer than its picture.
    """
    return math.floor(num_frames / frame_rate * sample_rate) // AAC_FRAME * AAC_FRAME


def fit(waveform: Waveform, samples: int, sample_rate: int, audio_level: float | None = None) -> Waveform:
    """``waveform`` (channels, any length) as (channels, ``samples``): cut or padded with silence, the end faded.

    The last 10 ms before the cut (or before the sound's own end) fall to zero along a raised cosine, so that nothing
    clicks. ``audio_level`` is a target in dBFS, see ``gain_for``. Values beyond full scale are limited to it.
    """
    kept = waveform[:, :samples]
    kept = np.clip(kept * gain_for(kept, audio_level), -1.0, 1.0).astype(np.float32)
    fade = min(round(FADE_SECONDS * sample_rate), kept.shape[1])
    if fade:
        kept[:, -fade:] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(1, fade + 1, dtype=np.float32) / fade)
    return np.pad(kept, ((0, 0), (0, samples - kept.shape[1])))


def gain_for(waveform: Waveform, audio_level: float | None) -> float:
    """The factor that brings ``waveform`` to ``audio_level``: 1.0 for ``None`` and for silence.

    The level is the RMS of all samples of all channels in dBFS (a full-scale square wave is 0 dBFS, a full-scale sine
    -3.01), unweighted and ungated. No gain lifts a peak above -1 dBFS: then the sound stays below the target.
    """
    if audio_level is None or not waveform.size:
        return 1.0
    peak, rms = float(np.abs(waveform).max()), float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64))))
    if rms == 0.0:
        return 1.0
    return min(10 ** (audio_level / 20) / rms, PEAK_CEILING / peak)


def check_waveform(waveform: object) -> Waveform:
    """``waveform`` as float32 (1 or 2 channels, samples), finite. Raises ValueError in one sentence."""
    sound = np.asarray(waveform)
    if sound.dtype.kind != "f":
        raise ValueError(f"the waveform holds {sound.dtype}: float32 from -1 to 1 is needed")
    if sound.ndim != 2 or sound.shape[0] not in (1, 2):
        raise ValueError(f"the waveform has the shape {sound.shape}: (1 or 2 channels, samples) is needed")
    if not np.isfinite(sound).all():
        raise ValueError("the waveform holds values that are not finite, so it cannot be written as sound")
    return sound.astype(np.float32)


def check_level(audio_level: float | None) -> None:
    """Refuse a target level outside -70 to 0 dBFS. Raises RequestError("audio_level", ...)."""
    if audio_level is None:
        return
    if isinstance(audio_level, bool) or not isinstance(audio_level, int | float) or not math.isfinite(audio_level):
        raise RequestError("audio_level", audio_level, "must be a finite number of dBFS, for instance -20", -20.0)
    if not MIN_LEVEL <= audio_level <= MAX_LEVEL:
        nearest = min(max(float(audio_level), MIN_LEVEL), MAX_LEVEL)
        raise RequestError("audio_level", audio_level, "must be from -70 to 0 dBFS", nearest)
