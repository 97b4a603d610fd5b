"""Looks at a clip of the demo world and says what is in it, then whether that is what the prompt asked for.

Plain image and sound analysis with numpy: nearest palette colour, overlap with ideal shapes, tracks of the centre,
rises of the loudness, the strongest pitch. Knows nothing of how the clip was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yellowsound.demo.outline import shape_of
from yellowsound.demo.world import COLOURS, COUNTED, FLOORS, FRAME_RATE, WALLS, Prompt

Array = NDArray[np.floating[Any]]
TOLERANCE_SECONDS = 2 / FRAME_RATE
LEAST_AREA = 150  # pixels, to tell a shape by
_PALETTE = {**COLOURS, **{f"floor {n}": c for n, c in FLOORS.items()}, **{f"wall {n}": c for n, c in WALLS.items()}}
_NAMES = tuple(_PALETTE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is in the pictures: names as in the world, "" where nothing fits; events in seconds."""

    colour: str
    shape: str
    motion: str
    floor: str
    events: tuple[float, ...]
    height: Array


@dataclass(frozen=True, slots=True)
class Heard:
    """What is in the sound: onsets in seconds, pitch track in Hz at 20 ms (0 where quiet), peak, rms, clipped share."""

    onsets: tuple[float, ...]
    pitch: Array
    peak: float
    rms: float
    clipped: float


def judge(prompt: Prompt, frames: NDArray[np.uint8], waveform: NDArray[np.float32], rate: int) -> dict[str, bool]:
    """Each question that applies to ``prompt``, answered: colour, shape, motion, floor, count, onsets, tone, level.

    frames: (F, H, W, 3). waveform: (samples,) or (channels, samples) in -1..1.
    """
    scene, seen, heard = prompt.scene, look(frames), listen(waveform, rate)
    answers = {
        "colour": seen.colour == scene.colour,
        "shape": seen.shape == scene.shape,
        "motion": seen.motion == scene.motion,
        "level": heard.rms < 0.01 if scene.voice == "silent" else heard.peak > 0.05 and heard.clipped < 0.001,
    }
    if prompt.floor_named:
        answers["floor"] = seen.floor == scene.floor
    if scene.motion in COUNTED:
        answers["count"] = seen.motion == scene.motion and abs(len(seen.events) - scene.count) <= 1
        if scene.voice != "silent":
            answers["onsets"] = bool(seen.events) and in_step(seen.events, heard.onsets)
    elif scene.voice != "silent":
        answers["tone"] = tone_fits(scene.voice, heard.pitch, seen.height)
    return answers


def look(frames: NDArray[np.uint8]) -> Seen:
    """Find the object by its colour and follow it through ``frames`` (F, H, W, 3)."""
    nearest = _nearest(frames)
    counts = np.bincount(nearest.ravel(), minlength=len(_NAMES))
    colour = int(counts[: len(COLOURS)].argmax())
    mask = nearest == colour
    area = mask.sum((1, 2)).astype(float)
    if area.max() < 60:
        return Seen("", "", "", _floor(nearest), (), np.zeros(len(frames)))
    shown = area > 0.3 * area.max() if _flickers(area) else area > 30
    x, y = _centre(mask, area)
    motion = _motion(x, y, area, shown)
    events = _landings(y) if motion == "bounce" else _appearances(shown) if motion == "blink" else ()
    return Seen(_NAMES[colour], shape_of(mask[shown & (area > LEAST_AREA)]), motion, _floor(nearest), events, -y)


def listen(waveform: NDArray[np.float32], rate: int) -> Heard:
    """Loudness, onsets and pitch of ``waveform``; several channels are averaged."""
    mono = np.asarray(waveform, dtype=np.float64)
    mono = mono.mean(0) if mono.ndim == 2 else mono
    peak, rms = float(np.abs(mono).max(initial=0)), float(np.sqrt(np.mean(mono**2)) if mono.size else 0)
    clipped = float(np.mean(np.abs(mono) >= 0.999)) if mono.size else 0.0
    return Heard(_onsets(mono, rate), _pitch(mono, rate), peak, rms, clipped)


def in_step(events: tuple[float, ...], onsets: tuple[float, ...]) -> bool:
    """Whether every event is heard within two frames, with at most one onset too many."""
    if len(onsets) > len(events) + 1 or not onsets:
        return False
    return all(min(abs(e - o) for o in onsets) <= TOLERANCE_SECONDS for e in events)


def tone_fits(voice: str, pitch: Array, height: Array) -> bool:
    """Whether the pitch track does what ``voice`` says: rises, falls, stays, or follows the object's height."""
    heard = pitch > 0
    if heard.mean() < 0.6:
        return False
    track = np.log2(pitch[heard])
    when = np.flatnonzero(heard)
    if voice == "steady":
        return float(np.percentile(track, 90) - np.percentile(track, 10)) < 0.3
    against = np.linspace(0, 1, len(pitch))[when]
    if voice == "height":
        against = np.interp(when / len(pitch), np.linspace(0, 1, len(height)), height)
    if track.std() < 0.1 or np.std(against) < 1e-6:
        return False
    fit = float(np.corrcoef(track, against)[0, 1])
    return fit < -0.7 if voice == "falling" else fit > 0.7


def _nearest(frames: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Index of the nearest palette colour for each pixel."""
    pixels = frames.astype(np.float32)
    best = np.full(frames.shape[:3], np.inf, dtype=np.float32)
    index = np.zeros(frames.shape[:3], dtype=np.int64)
    for i, colour in enumerate(_PALETTE.values()):
        distance = ((pixels - np.asarray(colour, dtype=np.float32)) ** 2).sum(-1)
        closer = distance < best
        best[closer], index[closer] = distance[closer], i
    return index


def _floor(nearest: NDArray[np.int64]) -> str:
    lowest = np.bincount(nearest[:, -12:].ravel(), minlength=len(_NAMES))
    name = _NAMES[int(lowest.argmax())]
    return name.removeprefix("floor ") if name.startswith("floor ") else ""


def _centre(mask: NDArray[np.bool_], area: Array) -> tuple[Array, Array]:
    """Centre of the mask in each frame; frames without an object take the neighbours' value."""
    there = area > 20
    x = (mask.sum(1) * np.arange(mask.shape[2])).sum(1) / np.maximum(area, 1)
    y = (mask.sum(2) * np.arange(mask.shape[1])).sum(1) / np.maximum(area, 1)
    when = np.arange(len(area))
    return np.interp(when, when[there], x[there]), np.interp(when, when[there], y[there])


def _flickers(area: Array) -> bool:
    """Whether the object is at times away, for good parts of the clip, without growing or shrinking between."""
    small = area < 0.15 * area.max()
    middle = (area > 0.3 * area.max()) & (area < 0.7 * area.max())
    return bool(0.15 < small.mean() < 0.9 and middle.mean() < 0.3)


def _motion(x: Array, y: Array, area: Array, shown: NDArray[np.bool_]) -> str:
    if _flickers(area):
        return "blink"
    quarter = len(area) // 4
    change = area[-quarter:].mean() / max(area[:quarter].mean(), 1.0)
    wide, high = np.ptp(x[shown]), np.ptp(y[shown])
    if max(wide, high) < 24 and not 0.5 < change < 2.0:
        return "grow" if change > 1 else "shrink"
    turned = _turned(x, y)
    if wide > 36 and high > 36 and abs(turned) > 1.2 * np.pi:
        return "clockwise" if turned > 0 else "counterclockwise"
    if wide > 48 and high < 24:
        return "right" if x[-quarter:].mean() > x[:quarter].mean() else "left"
    return "bounce" if high > 24 and wide < 24 else ""


def _turned(x: Array, y: Array) -> float:
    """Angle passed around the middle of the track, in radians, positive clockwise on the screen."""
    middle_x, middle_y = (x.min() + x.max()) / 2, (y.min() + y.max()) / 2
    angle = np.unwrap(np.arctan2(y - middle_y, x - middle_x))
    return float(angle[-1] - angle[0])


def _landings(y: Array) -> tuple[float, ...]:
    """Times at which the centre is lowest, one for each stay in the lower third of its range."""
    low = (y - y.min()) / max(np.ptp(y), 1e-6)
    return tuple(float(np.average(run, weights=low[run] - 0.6)) / FRAME_RATE for run in _runs(low > 0.66))


def _appearances(shown: NDArray[np.bool_]) -> tuple[float, ...]:
    return tuple(float(run[0]) / FRAME_RATE for run in _runs(shown) if run[0] > 0 and len(run) > 1)


def _runs(flags: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Index ranges in which ``flags`` holds."""
    where = np.flatnonzero(flags)
    return [run for run in np.split(where, np.flatnonzero(np.diff(where) > 1) + 1) if len(run)]


def _loudness(mono: Array, rate: int, hop_seconds: float) -> Array:
    hop = int(rate * hop_seconds)
    whole = mono[: len(mono) // hop * hop].reshape(-1, hop)
    return np.sqrt((whole**2).mean(1)) if len(whole) else np.zeros(1)


def _onsets(mono: Array, rate: int, hop_seconds: float = 0.01) -> tuple[float, ...]:
    """Times at which the loudness rises to more than twice what it was 20 to 50 ms before, 120 ms apart at least."""
    loud = _loudness(mono, rate, hop_seconds)
    floor = max(0.25 * float(loud.max()), 0.01)
    before = np.array([loud[max(i - 5, 0) : max(i - 1, 1)].mean() if i > 1 else 0.0 for i in range(len(loud))])
    onsets: list[float] = []
    for i in np.flatnonzero((loud > floor) & (loud > 2 * before)):
        time = float(i) * hop_seconds
        if not onsets or time - onsets[-1] > 0.12:
            onsets.append(time)
    return tuple(onsets)


def _pitch(mono: Array, rate: int, hop_seconds: float = 0.02) -> Array:
    """Frequency of the strongest partial between 150 and 2000 Hz in steps of 20 ms, 0 where it is quiet."""
    size, hop = 4096, int(rate * hop_seconds)
    if len(mono) < size:
        return np.zeros(1)
    starts = np.arange(0, len(mono) - size + 1, hop)
    blocks = np.stack([mono[s : s + size] for s in starts]) * np.hanning(size)
    power = np.abs(np.fft.rfft(blocks, axis=1))
    hertz = np.fft.rfftfreq(size, 1 / rate)
    band = (hertz > 150) & (hertz < 2000)
    loud = np.sqrt((blocks**2).mean(1)) > 0.01
    return np.where(loud, hertz[band][power[:, band].argmax(1)], 0.0)
