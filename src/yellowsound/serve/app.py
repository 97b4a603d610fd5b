"""The HTTP application: routes, middleware and the life of the service. Imports no torch."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from yellowsound.serve.errors import install_handlers
from yellowsound.serve.middleware import RequestGate
from yellowsound.serve.routes import content, events, health, models, queue, sync, videos
from yellowsound.serve.service import Service, build_service
from yellowsound.serve.settings import Settings

_EXPOSED = [
    "Content-Range", "Accept-Ranges", "Content-Length", "Content-Disposition", "ETag", "X-Request-Id", "Retry-After",
    "openai-poll-after-ms",
]  # fmt: skip


def create_app(settings: Settings) -> FastAPI:
    """The application over one data folder. Raises CheckpointError, DataDirTaken, OSError, ValueError."""
    service = build_service(settings)
    app = FastAPI(
        title="yellowsound",
        description="Short videos with sound, made as jobs.",
        version="1",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.service = service
    install_handlers(app)
    for part in (sync, models, videos, content, events, queue, health):  # fixed words before {video_id}
        app.include_router(part.router)
    if settings.page:
        _mount_page(app)
    app.add_middleware(RequestGate, auth=service.auth, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Range", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=_EXPOSED,
        )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.broadcast.attach(asyncio.get_running_loop())
    await anyio.to_thread.run_sync(service.start)
    yield
    service.broadcast.stop()
    await anyio.to_thread.run_sync(service.stop)


def _mount_page(app: FastAPI) -> None:
    """The page at ``/`` is a part of its own: without its files the API stands alone."""
    try:
        page = importlib.import_module("yellowsound.serve.page")
    except ModuleNotFoundError as error:
        if error.name != "yellowsound.serve.page":
            raise
        return
    router = getattr(page, "router", None)
    if router is not None:
        app.include_router(router)
