"""What a running clip says. Events are the only way progress leaves the engine; no torch here."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Stage = Literal["load", "expand", "text", "image", "denoise", "decode", "mux", "upscale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact with a time (seconds since the epoch)."""

    time: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON values, ``type`` first."""
        values = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"type": type(self).__name__, **values}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBegan(Event):
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded(Event):
    stage: Stage
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """Step ``step`` of ``steps`` (counted from 1) took ``seconds``."""

    step: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Event):
    """A strip of the predicted clip after ``step``: ``strip`` is uint8 (height, n * width, 3), ``frames`` = n."""

    step: int
    frames: int
    strip: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned(Event):
    """The plan in force changed while the clip ran, and why."""

    reason: str


OnEvent = Callable[[Event], None]


class Cancelled(Exception):
    """Raised inside the engine when its CancelToken was cancelled."""


class CancelToken:
    """A switch another thread or a signal handler may throw; the engine looks between blocks and tiles."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise Cancelled if the switch was thrown."""
        if self._event.is_set():
            raise Cancelled("cancelled")


def _plain(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    return {"shape": list(value.shape), "base64": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()}
