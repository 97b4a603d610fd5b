"""How far a job is, as a number from 0 to 99, and how long it may still take, from this machine's own history."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import Any

from yellowsound.serve.job import Job
from yellowsound.serve.jobs import KEPT_TIMINGS

_SPANS = {
    "load": (0, 3), "expand": (3, 5), "text": (5, 8), "image": (8, 10), "denoise": (10, 85), "decode": (85, 95),
    "upscale": (95, 96), "mux": (96, 99),
}  # fmt: skip
MIN_STEPS_FOR_ESTIMATE = 2


def progress_of(event: dict[str, Any]) -> dict[str, Any] | None:
    """What an engine event changes in the job: progress, stage, step, steps; None when nothing."""
    kind = event["type"]
    if kind == "StageBegan" and event["stage"] in _SPANS:
        return {"stage": event["stage"], "progress": _SPANS[event["stage"]][0]}
    if kind == "StageEnded" and event["stage"] in _SPANS:
        return {"stage": event["stage"], "progress": _SPANS[event["stage"]][1]}
    if kind == "StepDone":
        low, high = _SPANS["denoise"]
        part = event["step"] / max(1, event["steps"])
        return {
            "stage": "denoise",
            "step": event["step"],
            "steps": event["steps"],
            "progress": low + int((high - low) * part),
        }
    if kind in ("Warned", "Replanned"):
        text = event["message"] if kind == "Warned" else f"plan changed: {event['reason']}"
        return {"warning": text}
    return None


class History:
    """Run times by kind of job, newest last; estimates are medians of the last 20."""

    def __init__(self, timings: list[tuple[str, float]]) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, deque[float]] = {}
        for kind, seconds in timings:
            self.add(kind, seconds)

    def add(self, kind: str, seconds: float) -> None:
        with self._lock:
            self._seconds.setdefault(kind, deque(maxlen=KEPT_TIMINGS)).append(seconds)

    def expected_seconds(self, kind: str) -> float | None:
        """What such a job takes here, or None before the first one."""
        with self._lock:
            known = self._seconds.get(kind)
            return statistics.median(known) if known else None

    def remaining_seconds(self, job: Job) -> float | None:
        """What a running job may still take: by history, else by its own steps from the second on; else None."""
        elapsed = time.time() - (job.started_at or time.time())
        expected = self.expected_seconds(job.kind)
        if expected is not None:
            return max(0.0, expected - elapsed)
        if job.step and job.steps and job.step >= MIN_STEPS_FOR_ESTIMATE and job.progress:
            return max(0.0, elapsed * (100 - job.progress) / job.progress)
        return None

    def waiting_seconds(self, ahead: dict[str, int], running: list[Job], workers: int) -> float | None:
        """How long until a job behind ``ahead`` (number by kind) begins; None while a kind before it is unknown."""
        total = 0.0
        for seconds, count in [
            *((self.remaining_seconds(job), 1) for job in running),
            *((self.expected_seconds(kind), count) for kind, count in ahead.items()),
        ]:
            if seconds is None:
                return None
            total += seconds * count
        return total / max(1, workers)
