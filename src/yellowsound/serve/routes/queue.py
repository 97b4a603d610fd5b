"""The queue as a whole: look, pause, resume, reorder."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from pydantic import BaseModel, Field

from yellowsound.serve import schema
from yellowsound.serve.errors import ApiError
from yellowsound.serve.routes.videos import Here, find_job, owner_of
from yellowsound.serve.service import Service

router = APIRouter(tags=["queue"], responses=schema.ERRORS)
MAX_PLACE = 1_000_000


class Place(BaseModel):
    """Where a waiting job shall stand; 0 is next."""

    to: int = Field(ge=0, le=MAX_PLACE)


@router.get("/v1/queue")
def read_queue(request: Request, service: Here) -> dict[str, Any]:
    """Running and waiting jobs in order, and whether the queue is paused."""
    return _queue(service, request)


@router.post("/v1/queue/pause")
def pause_queue(request: Request, service: Here) -> dict[str, Any]:
    """Hand out no more jobs; running ones go on. Survives a restart."""
    service.store.pause(True)
    return _queue(service, request)


@router.post("/v1/queue/resume")
def resume_queue(request: Request, service: Here) -> dict[str, Any]:
    """Go on handing out jobs."""
    service.store.pause(False)
    return _queue(service, request)


@router.post("/v1/queue/{video_id}/move")
def move_job(video_id: str, place: Annotated[Place, Body()], request: Request, service: Here) -> dict[str, Any]:
    """Put a waiting job at another place."""
    job = find_job(service, video_id, request)
    if not service.store.move(job.id, place.to):
        message = "This video does not wait any more; only waiting ones have a place in the queue."
        raise ApiError(409, "not_queued", message, "video_id", {"x-should-retry": "false"})
    return _queue(service, request)


def _queue(service: Service, request: Request) -> dict[str, Any]:
    isolated, owner = service.settings.isolate_keys, owner_of(request)

    def shown(jobs: list[Any]) -> list[dict[str, Any]]:
        return [service.wire.job(job) for job in jobs if not isolated or job.owner == owner]

    return {
        "object": "queue",
        "paused": service.store.setting("paused") == "yes",
        "running": shown(service.store.running()),
        "queued": shown(service.store.queued(limit=200)),
        "length": service.store.counts()["queued"],
        "limit": service.settings.limits.queue,
    }
