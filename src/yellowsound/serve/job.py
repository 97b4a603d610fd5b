"""Job: a ClipRequest with a life, as the store keeps it."""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Any

ID_PATTERN = re.compile(r"video_[0-9a-f]{32}")
LIVE = ("queued", "in_progress")


def new_job_id() -> str:
    """A fresh id: ``video_`` and 32 hex digits."""
    return f"video_{secrets.token_hex(16)}"


def is_job_id(text: str) -> bool:
    """Whether ``text`` has the form of an id; only such texts ever touch a path."""
    return ID_PATTERN.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is stored when a job is accepted. ``request`` holds resolved ClipRequest fields."""

    id: str
    owner: str
    model: str
    recipe: str
    request: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What makes run times comparable: model, recipe, geometry and steps."""
        return kind_of(self.model, self.recipe, self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the store. Times are seconds since the epoch; ``facts`` say what was made."""

    seq: int
    id: str
    owner: str
    model: str
    recipe: str
    kind: str
    status: str
    position: float
    request: dict[str, Any]
    warnings: list[str]
    created_at: float
    started_at: float | None
    completed_at: float | None
    expires_at: float | None
    attempt: int
    worker: str | None
    lease_until: float | None
    progress: int
    stage: str | None
    step: int | None
    steps: int | None
    previews: int
    error_code: str | None
    error_message: str | None
    facts: dict[str, Any]

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


def kind_of(model: str, recipe: str, request: dict[str, Any]) -> str:
    """The kind of a job with these resolved fields, also before it exists."""
    r = request
    sound = "sound" if r["sample_audio"] else "silent"
    size = f"{r['width']}x{r['height']}x{r['num_frames']}"
    return f"{model}/{recipe}/{size}/{r['num_inference_steps']}/{r['guidance_scale']}/{sound}"


def job_of_row(row: sqlite3.Row) -> Job:
    values = dict(row)
    for name in ("request", "warnings", "facts"):
        values[name] = json.loads(values[name])
    return Job(**values)
