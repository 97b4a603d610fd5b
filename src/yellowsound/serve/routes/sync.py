"""POST /v1/videos/sync: the same job, but the answer waits for the clip."""

from __future__ import annotations

import asyncio
import json
import time

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from yellowsound.serve import schema
from yellowsound.serve.content import FileAnswer
from yellowsound.serve.errors import NO_RETRY, ApiError
from yellowsound.serve.job import Job
from yellowsound.serve.routes.videos import Here, submit
from yellowsound.serve.service import Service

router = APIRouter(tags=["videos"], responses=schema.ERRORS)
_LOOK_SECONDS = 1.0


@router.post(
    "/v1/videos/sync",
    response_class=Response,
    responses={200: {"content": {"video/mp4": {}}}},
    openapi_extra=schema.create_body(),
)
async def create_video_and_wait(request: Request, service: Here) -> Response:
    """The MP4 itself; a client that goes away cancels the job."""
    job = await submit(request, service)
    try:
        ended = await _wait(request, service, job)
    except asyncio.CancelledError:
        service.store.cancel(job.id)
        raise
    if ended.status == "failed":
        message = f"{ended.error_code}: {ended.error_message}"
        raise ApiError(500, ended.error_code or "internal_error", message, headers=NO_RETRY)
    facts = ended.facts
    headers = {
        "X-Model": ended.model,
        "X-Video-Id": ended.id,
        "X-Inference-Time-S": str(facts["inference_seconds"]),
        "X-Stage-Durations": json.dumps(facts["stage_seconds"]),
        "X-Peak-Memory-MB": str(round((facts["vram_peak_bytes"] or facts["rss_peak_bytes"]) / 1e6, 1)),
        "Content-Disposition": f'inline; filename="{ended.id}.mp4"',
    }
    path = service.files.path("clip", ended.id)
    try:
        return FileAnswer(
            path,
            request.headers,
            method="POST",
            media_type="video/mp4",
            tag=facts["sha256"][:32],
            headers=headers,
        )
    except FileNotFoundError:
        raise ApiError(404, "video_not_found", "The video was deleted meanwhile.") from None


async def _wait(request: Request, service: Service, job: Job) -> Job:
    """The ended job. Raises ApiError 404 (deleted), 503 (stopping), 504; cancels it when nobody listens any more."""
    deadline = time.monotonic() + service.settings.limits.sync_seconds
    with service.broadcast.waiting(job.id) as news:
        while True:
            news.clear()
            now = await anyio.to_thread.run_sync(service.store.get, job.id)
            if now is None:
                raise ApiError(404, "video_not_found", "The video was deleted meanwhile.")
            if not now.is_live:
                return now
            if service.broadcast.stopping:
                raise ApiError(503, "shutting_down", f"The server is stopping; {job.id} goes on at its next start.")
            if time.monotonic() > deadline:
                await anyio.to_thread.run_sync(service.store.cancel, job.id)
                raise ApiError(
                    504, "sync_timeout", "The clip took too long for a waiting answer; the job was cancelled."
                )
            if await request.is_disconnected():
                await anyio.to_thread.run_sync(service.store.cancel, job.id)
                continue
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await news.wait()
            except TimeoutError:
                pass
