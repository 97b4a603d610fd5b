"""Runs the application under uvicorn until a signal ends it."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn

from yellowsound.request import RequestError
from yellowsound.serve.app import create_app
from yellowsound.serve.logging import configure_logging, logger
from yellowsound.serve.service import Service
from yellowsound.serve.settings import Settings

GRACE_SECONDS = 5
KEEP_ALIVE_SECONDS = 75  # longer than clients pause between polls: a connection closed under a request is an error


def run_server(settings: Settings, log_level: str = "info") -> None:
    """Serve until SIGINT or SIGTERM. Raises CheckpointError, DataDirTaken, OSError, ValueError before it listens."""
    configure_logging(log_level)
    listening = listen(settings.host, settings.port)
    app = create_app(settings)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    names = ", ".join(model.name for model in service.models.all)
    where = f"http://{settings.host}:{listening.getsockname()[1]}"
    logger().info("serving", address=where, models=names, data_dir=str(settings.data_dir), workers=settings.workers)
    Server(config, service).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, before anything is started for it. Raises RequestError for the port, OSError if taken."""
    if not 0 <= port <= 65_535:
        raise RequestError("port", port, "must be from 0 (any free one) to 65535", 8094)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns off Nagle's delay (40 ms an answer) only on sockets that say so.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {(error.strerror or 'refused').lower()}") from None
    return bound


class Server(uvicorn.Server):
    """uvicorn that lets event streams end when it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.broadcast.stop()
        super().handle_exit(sig, frame)
