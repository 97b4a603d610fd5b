"""One event stream a tab: the living part of its page, sent whole whenever it looks different.

A reader that was away needs no history: the first message is always the present state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from yellowsound.serve.page import regions
from yellowsound.serve.page.gallery import Filter, filter_of
from yellowsound.serve.page.visitor import PageRoute
from yellowsound.serve.routes.videos import Here, find_job
from yellowsound.serve.service import Service

router = APIRouter(route_class=PageRoute)
LEAST_SECONDS, SEARCH_SECONDS = 0.25, 1.5  # between two pictures of a page; the gallery reads the whole table for one
CLOCK_SECONDS = 1.0  # elapsed and remaining times move while something runs
IDLE_SECONDS = 15.0
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@router.get("/live/home")
async def home(request: Request, service: Here) -> StreamingResponse:
    """Running, waiting and ended jobs as they change."""
    return _answer(service, partial(regions.home, service, regions.owner_filter(service, request)))


@router.get("/live/clips")
async def clips(request: Request, service: Here, wanted: Annotated[Filter, Depends(filter_of)]) -> StreamingResponse:
    """A page of the gallery as it changes."""
    draw = partial(regions.clips, service, regions.owner_filter(service, request), wanted)
    return _answer(service, draw, SEARCH_SECONDS)


@router.get("/live/clip/{video_id}")
async def clip(video_id: str, request: Request, service: Here) -> StreamingResponse:
    """One job as it changes."""
    job = await anyio.to_thread.run_sync(find_job, service, video_id, request)
    return _answer(service, partial(regions.clip, service, job.id))


@router.get("/live/status")
async def machine(request: Request, service: Here) -> StreamingResponse:
    """Workers, disk and failures as they change."""
    return _answer(service, partial(regions.machine, service, regions.owner_filter(service, request)))


def _answer(service: Service, draw: regions.Draw, least_seconds: float = LEAST_SECONDS) -> StreamingResponse:
    return StreamingResponse(_pictures(service, draw, least_seconds), media_type="text/event-stream", headers=_HEADERS)


async def _pictures(service: Service, draw: regions.Draw, least_seconds: float) -> AsyncIterator[str]:
    last = ""
    with service.broadcast.waiting() as news:
        while not service.broadcast.stopping:
            news.clear()
            html = await anyio.to_thread.run_sync(draw)
            yield _message(html) if html != last else ": the same\n\n"
            last = html
            await asyncio.sleep(least_seconds)
            is_busy = any(state["job"] or not state["ready"] for state in service.dispatcher.states())
            try:
                async with asyncio.timeout(CLOCK_SECONDS if is_busy else IDLE_SECONDS):
                    await news.wait()
            except TimeoutError:
                pass


def _message(html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"{lines}\n"
