"""Jobs as the templates show them: the API's own job object, and what only a person needs beside it."""

from __future__ import annotations

import time
from typing import Any

from yellowsound.serve.job import Job
from yellowsound.serve.page import words
from yellowsound.serve.service import Service


def card(service: Service, job: Job) -> dict[str, Any]:
    """One job for the templates: every field of the API's job object, plus ``state``, ``stage_words``, ``elapsed_s``,
    ``took_s``, ``basis`` (what the remaining time comes from) and links that work on this origin."""
    shown = service.wire.job(job)
    now = time.time()
    running_since = job.started_at if job.status == "in_progress" else None
    took = job.completed_at - job.started_at if job.completed_at and job.started_at else None
    width, height = (int(side) for side in shown["size"].split("x"))
    return {
        **shown,
        "state": "cancelled" if job.error_code == "cancelled" else job.status,
        "stage_words": words.STAGES.get(job.stage or "", "starting"),
        "elapsed_s": None if running_since is None else now - running_since,
        "took_s": took if job.status == "completed" else None,
        "basis": "earlier clips like this" if shown["expected_s"] is not None else "its own steps so far",
        "ended_at": job.completed_at,
        "width": width,
        "height": height,
        **_links(service, job),
    }


def _links(service: Service, job: Job) -> dict[str, str | None]:
    """Signed links below this origin, whatever address the API gives to others."""
    base, query = f"/v1/videos/{job.id}", service.auth.signed_query(job.id)
    done = job.status == "completed"
    return {
        "video": f"{base}/content?{query}" if done else None,
        "download": f"{base}/content?download=true&{query}" if done else None,
        "thumbnail": f"{base}/content?variant=thumbnail&{query}" if done else None,
        "preview": _preview(service, job, f"{base}/preview?{query}"),
    }


def _preview(service: Service, job: Job, link: str) -> str | None:
    """The strip's link changes with its content, because a picture of the same address is not loaded again."""
    if not job.previews or job.status == "completed":
        return None
    try:
        stamp = service.files.path("preview", job.id).stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return f"{link}&stamp={stamp:x}"


def spoken(running: list[dict[str, Any]], ended: list[dict[str, Any]]) -> str:
    """What a screen reader says of the moment: coarse, so that it does not talk all the time."""
    parts = [
        f"{words.short(job['prompt'], 40)}: {job['stage_words']}, {job['progress'] // 25 * 25} percent"
        for job in running
    ]
    fresh = [job for job in ended if job["ended_at"] and time.time() - job["ended_at"] < 60]
    verdicts = {"completed": "is ready", "cancelled": "was cancelled", "failed": "failed"}
    parts += [f"{words.short(job['prompt'], 40)} {verdicts[job['state']]}" for job in fresh[:1]]
    return ". ".join(parts)
