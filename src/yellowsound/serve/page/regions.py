"""The living parts of the pages: each is drawn from the store as it is now, for the first answer and for the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request

from yellowsound.serve.job import Job
from yellowsound.serve.page.cards import card, spoken
from yellowsound.serve.page.gallery import Filter, jobs_of
from yellowsound.serve.page.render import fragment
from yellowsound.serve.routes.health import status
from yellowsound.serve.service import Service

SHOWN_WAITING, SHOWN_ENDED = 30, 5
Draw = Callable[[], str]


def owner_filter(service: Service, request: Request) -> str | None:
    """The owner whose jobs are shown, or None for all: keys see each other's jobs unless they are kept apart."""
    return (request.state.owner or "") if service.settings.isolate_keys else None


def home(service: Service, owner: str | None) -> str:
    """Running, waiting and the newest ended jobs."""
    running = [card(service, job) for job in service.store.running() if _is_of(job, owner)]
    waiting = [card(service, job) for job in service.store.queued(SHOWN_WAITING) if _is_of(job, owner)]
    ended = [card(service, job) for job in _ended(service, owner)]
    return fragment(
        "live_home.html",
        running=running,
        waiting=waiting,
        ended=ended,
        length=service.store.counts()["queued"],
        spoken=spoken(running, ended),
        **_state(service),
    )


def clips(service: Service, owner: str | None, wanted: Filter) -> str:
    """One page of the gallery."""
    jobs, more = jobs_of(service, wanted, owner)
    following = wanted.query(jobs[-1].id) if more and jobs else ""
    shown = [card(service, job) for job in jobs]
    return fragment(
        "live_clips.html",
        jobs=shown,
        following=following,
        filtered=bool(wanted.words or wanted.state),
        first=wanted.query() if wanted.after else None,
    )


def clip(service: Service, job_id: str) -> str:
    """One job with everything known about it; a line when it is gone meanwhile."""
    job = service.store.get(job_id)
    if job is None:
        return fragment("gone.html")
    shown = card(service, job)
    lists = ([shown], []) if job.is_live else ([], [shown])
    return fragment("live_clip.html", job=shown, spoken=spoken(*lists), **_state(service))


def machine(service: Service, owner: str | None) -> str:
    """Workers, disk and the last failures."""
    failures = [card(service, job) for job in service.store.last_failures(10) if _is_of(job, owner)]
    return fragment("live_status.html", now=status(service), failures=failures, started_at=service.started_at)


def _is_of(job: Job, owner: str | None) -> bool:
    return owner is None or job.owner == owner


def _ended(service: Service, owner: str | None) -> list[Job]:
    jobs, _ = service.store.page(limit=100, owner=owner)
    ended = [job for job in jobs if not job.is_live]
    return sorted(ended, key=lambda job: job.completed_at or 0.0, reverse=True)[:SHOWN_ENDED]


def _state(service: Service) -> dict[str, Any]:
    """Whether jobs are handed out at all, and what stands in the way."""
    troubles = sorted({str(state["trouble"]) for state in service.dispatcher.states() if state["trouble"]})
    return {
        "paused": service.store.setting("paused") == "yes",
        "ready": service.dispatcher.can_serve,
        "hopeless": service.dispatcher.is_hopeless,
        "troubles": troubles,
    }
