"""Two clips side by side: which ones can be chosen, and scores of the pair when somebody wrote some.

Scores are measured elsewhere. A file ``scores/A.B.json`` below the data folder (two job ids, in either order) holds one
flat object of names and numbers, for instance ``{"LPIPS (alex)": 0.041}``; it is shown as it stands.
"""

from __future__ import annotations

import json
from typing import Any

from yellowsound.serve.errors import ApiError
from yellowsound.serve.job import Job
from yellowsound.serve.service import Service

CHOICES = 50
_MAX_BYTES = 100_000


def finished(service: Service, owner: str | None) -> list[Job]:
    """The newest finished clips."""
    jobs, _ = service.store.page(limit=100, owner=owner)
    return [job for job in jobs if job.status == "completed"][:CHOICES]


def check_finished(job: Job) -> Job:
    """``job`` if it can be compared. Raises ApiError 404."""
    if job.status != "completed":
        raise ApiError(404, "video_not_ready", "Only finished clips can be compared.", "clip")
    return job


def scores(service: Service, first: Job, second: Job) -> dict[str, float]:
    """Names and numbers of the pair; empty when nobody scored it."""
    folder = service.settings.data_dir / "scores"
    for one, other in ((first, second), (second, first)):
        path = folder / f"{one.id}.{other.id}.json"
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            return _numbers(path.read_text(encoding="utf-8"))
    return {}


def _numbers(text: str) -> dict[str, float]:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {str(k): float(v) for k, v in value.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
