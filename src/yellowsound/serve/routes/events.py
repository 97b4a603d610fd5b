"""Server-sent events: one stream for a job, one for all, both resumable with Last-Event-ID."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from yellowsound.serve import schema
from yellowsound.serve.job import Job
from yellowsound.serve.routes.videos import Here, find_job, owner_of
from yellowsound.serve.service import Service

router = APIRouter(tags=["events"], responses=schema.ERRORS)
KEEP_ALIVE_SECONDS = 15.0
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_ENDS = ("completed", "failed", "deleted", "expired")
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


@router.get("/v1/videos/{video_id}/events", response_class=StreamingResponse, responses=_STREAM)
async def job_events(video_id: str, request: Request, service: Here) -> StreamingResponse:
    """A snapshot of the job, then what happens to it; ends with the job."""
    job = await anyio.to_thread.run_sync(find_job, service, video_id, request)
    return _answer(_job_stream(service, job, _last_id(request)))


@router.get("/v1/events", response_class=StreamingResponse, responses=_STREAM)
async def all_events(request: Request, service: Here) -> StreamingResponse:
    """What happens to any job (of this key, where keys are kept apart), from now or from Last-Event-ID on."""
    owner = owner_of(request) if service.settings.isolate_keys else None
    return _answer(_all_stream(service, _last_id(request), owner))


def _answer(stream: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)


def _last_id(request: Request) -> int | None:
    text = request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


async def _job_stream(service: Service, job: Job, last: int | None) -> AsyncIterator[str]:
    if last is None:
        now, newest = await anyio.to_thread.run_sync(service.store.snapshot, job.id)
        if now is not None:
            snapshot = await anyio.to_thread.run_sync(service.wire.job, now)
            yield _frame("snapshot", snapshot, newest)
            if not now.is_live:
                return
        last = newest
    async for event in _news(service, last, job.id):
        if event is None:
            yield ": keep-alive\n\n"
            continue
        yield await anyio.to_thread.run_sync(_event_frame, service, event)
        if event["type"] in _ENDS:
            return


async def _all_stream(service: Service, last: int | None, owner: str | None) -> AsyncIterator[str]:
    if last is None:
        last = await anyio.to_thread.run_sync(service.store.last_event_id)
    yield f"retry: 2000\nid: {last}\nevent: ready\ndata: {{}}\n\n"
    async for event in _news(service, last, None):
        if event is None:
            yield ": keep-alive\n\n"
        elif owner is None or await anyio.to_thread.run_sync(_belongs, service, event, owner):
            yield await anyio.to_thread.run_sync(_event_frame, service, event)


async def _news(service: Service, last: int, job_id: str | None) -> AsyncIterator[dict[str, Any] | None]:
    """Stored events after ``last`` as they come; None when there was none for a while. Ends when the server stops,
    and for one job when the job is gone."""
    with service.broadcast.waiting(job_id) as news:
        while not service.broadcast.stopping:
            news.clear()
            events = await anyio.to_thread.run_sync(service.store.events_after, last, job_id)
            for event in events:
                last = event["id"]
                yield event
            if events:
                continue
            if job_id is not None and await anyio.to_thread.run_sync(_is_over, service, job_id):
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield None


def _is_over(service: Service, job_id: str) -> bool:
    job = service.store.get(job_id)
    return job is None or not job.is_live


def _event_frame(service: Service, event: dict[str, Any]) -> str:
    data = {**event["data"], "time": event["time"]}
    if event["type"] in ("completed", "failed", "queued", "requeued", "in_progress"):
        job = service.store.get(event["job_id"])
        data["video"] = service.wire.job(job) if job is not None else None
    return _frame(event["type"], data, event["id"])


def _frame(name: str, data: dict[str, Any], number: int) -> str:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def _belongs(service: Service, event: dict[str, Any], owner: str) -> bool:
    job = service.store.get(event["job_id"])
    return job is not None and job.owner == owner
