"""Jobs over HTTP: create, list, read, delete, cancel, and what is refused cleanly."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from yellowsound.serve import schema
from yellowsound.serve.accept import accept
from yellowsound.serve.body import read_body
from yellowsound.serve.errors import NO_RETRY, ApiError
from yellowsound.serve.job import Job, is_job_id
from yellowsound.serve.service import Service, service_of

router = APIRouter(tags=["videos"], responses=schema.ERRORS)
Here = Annotated[Service, Depends(service_of)]
MAX_PAGE, PAGE = 100, 20


def owner_of(request: Request) -> str:
    """The owner id behind a request; empty on a server without keys."""
    return request.state.owner or ""


def find_job(service: Service, job_id: str, request: Request) -> Job:
    """The job of that id, or the 404 that says why there is none. Raises ApiError."""
    job = service.store.get(job_id) if is_job_id(job_id) else None
    by_link = getattr(request.state, "by_link", False)
    if job is not None and (by_link or not service.settings.isolate_keys or job.owner == owner_of(request)):
        return job
    if is_job_id(job_id) and service.store.tombstone(job_id) == "expired":
        raise ApiError(404, "video_expired", "This video is over its retention time and was removed.", "video_id")
    raise ApiError(404, "video_not_found", "There is no video of this id.", "video_id")


def job_answer(service: Service, job: Job) -> JSONResponse:
    """The job object, with the pace for polling while it lives."""
    headers = {"openai-poll-after-ms": str(service.settings.poll_after_ms)} if job.is_live else None
    return JSONResponse(service.wire.job(job), headers=headers)


@router.post("/v1/videos", response_model=schema.VideoJob, openapi_extra=schema.create_body())
async def create_video(request: Request, service: Here) -> JSONResponse:
    """Store a job and answer with it; an answered id exists after any crash."""
    job = await submit(request, service)
    return await anyio.to_thread.run_sync(job_answer, service, job)


async def submit(request: Request, service: Service) -> Job:
    """Read the body and accept the job."""
    raw = await read_body(request, service.settings.limits)
    key = request.headers.get("idempotency-key")
    return await anyio.to_thread.run_sync(partial(accept, service, raw, owner_of(request), key))


@router.get("/v1/videos", response_model=schema.VideoList)
def list_videos(
    request: Request,
    service: Here,
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = PAGE,
    after: Annotated[str | None, Query(max_length=100)] = None,
    order: Literal["asc", "desc"] = "desc",
) -> JSONResponse:
    """Jobs by age, newest first; go on with ``after`` = ``last_id`` while ``has_more``."""
    owner = owner_of(request) if service.settings.isolate_keys else None
    jobs, more = service.store.page(limit=limit, after=after or None, ascending=order == "asc", owner=owner)
    data = [service.wire.job(job) for job in jobs]
    ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return JSONResponse({"object": "list", "data": data, "first_id": ends[0], "last_id": ends[1], "has_more": more})


@router.get("/v1/videos/{video_id}", response_model=schema.VideoJob)
def read_video(video_id: str, request: Request, service: Here) -> JSONResponse:
    """The job as it is now; a failed one too is 200, with ``error``."""
    return job_answer(service, find_job(service, video_id, request))


@router.delete("/v1/videos/{video_id}", response_model=schema.VideoDeleted)
def delete_video(video_id: str, request: Request, service: Here) -> JSONResponse:
    """Remove the job and its files in any state; a running one stops within a block."""
    job = find_job(service, video_id, request)
    if not service.store.delete(job.id):
        raise ApiError(404, "video_not_found", "There is no video of this id.", "video_id")
    service.files.remove(job.id)
    return JSONResponse({"id": job.id, "object": "video.deleted", "deleted": True})


@router.post("/v1/videos/{video_id}/cancel", response_model=schema.VideoJob)
def cancel_video(video_id: str, request: Request, service: Here) -> JSONResponse:
    """Stop a job and keep its record: ``failed`` with code ``cancelled``; an ended job stays as it is."""
    found = find_job(service, video_id, request)
    job = service.store.cancel(found.id)
    if job is None:
        raise ApiError(404, "video_not_found", "There is no video of this id.", "video_id")
    if found.is_live and job.error_code == "cancelled":
        service.metrics.failed(job.model, "cancelled")
    return job_answer(service, job)


def _unsupported() -> JSONResponse:
    raise ApiError(501, "unsupported_operation", "This model makes clips from a prompt and a picture only.",
                   headers=NO_RETRY)  # fmt: skip


for _path in ("/v1/videos/edits", "/v1/videos/extensions", "/v1/videos/characters", "/v1/videos/{video_id}/remix"):
    router.add_api_route(_path, _unsupported, methods=["POST"], include_in_schema=False)
router.add_api_route("/v1/videos/characters/{name}", _unsupported, methods=["GET"], include_in_schema=False)
