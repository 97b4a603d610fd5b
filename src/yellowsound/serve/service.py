"""Service: everything a running server is made of, built once and handed to the routes."""

from __future__ import annotations

import fcntl
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fastapi import Request

from yellowsound.serve.admission import Admission
from yellowsound.serve.auth import Auth
from yellowsound.serve.broadcast import Broadcast
from yellowsound.serve.dispatch import Dispatcher
from yellowsound.serve.files import JobFiles
from yellowsound.serve.jobs import JobStore
from yellowsound.serve.metrics import Metrics, an_hour_ago
from yellowsound.serve.pool import LocalPool
from yellowsound.serve.progress import History
from yellowsound.serve.run_desk import RunDesk
from yellowsound.serve.served import ServedModels, open_models
from yellowsound.serve.settings import Settings
from yellowsound.serve.wire import Wire
from yellowsound.serve.worker_protocol import WorkerOptions, WorkerPool


class DataDirTaken(RuntimeError):
    """Another server works on the same data folder."""


@dataclass(slots=True, kw_only=True)
class Service:
    """The parts of one server. Routes find it as ``request.app.state.service``."""

    settings: Settings
    models: ServedModels
    store: JobStore
    files: JobFiles
    auth: Auth
    history: History
    metrics: Metrics
    broadcast: Broadcast
    dispatcher: Dispatcher
    wire: Wire
    admission: Admission
    lock: IO[str]
    started_at: float = field(default_factory=time.time)
    is_stopping: bool = False

    def start(self) -> None:
        self.dispatcher.recover()
        self.dispatcher.start()

    def stop(self) -> None:
        """Stop workers, close the store, free the data folder. Blocks."""
        self.is_stopping = True
        self.dispatcher.stop()
        self.store.close()
        self.lock.close()

    def gauges(self) -> dict[str, Any]:
        """Live figures for /metrics."""
        return {
            "counts": self.store.counts(),
            "free_bytes": self.files.free_bytes(),
            "ready": sum(slot.can_serve for slot in self.dispatcher.slots),
            "per_hour": self.store.completed_since(an_hour_ago()),
        }


def service_of(request: Request) -> Service:
    """The service behind a request; also a FastAPI dependency."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def build_service(settings: Settings) -> Service:
    """Open checkpoints, data folder and store. Raises CheckpointError, DataDirTaken, OSError, ValueError."""
    models = open_models(settings)
    root = settings.data_dir.expanduser().resolve()  # workers may have another working folder
    root.mkdir(parents=True, exist_ok=True)
    lock = _lock(root)
    files = JobFiles(root)
    store = JobStore(root / "jobs.sqlite3")
    store.retention_seconds = settings.retention_seconds
    history, metrics, broadcast = History(store.timings()), Metrics(), Broadcast()
    auth = Auth(settings.api_keys, _secret(store), settings.signature_seconds)
    desk = RunDesk(settings, store, files, models, history, metrics)
    pool, slots = build_pool(settings)
    dispatcher = Dispatcher(settings, store, files, pool, desk, slots)
    store.listen(broadcast.tell)
    wire = Wire(settings, store, history, auth)
    service = Service(
        settings=settings, models=models, store=store, files=files, auth=auth, history=history, metrics=metrics,
        broadcast=broadcast, dispatcher=dispatcher, wire=wire, admission=Admission(settings, models), lock=lock,
    )  # fmt: skip
    metrics.watch(service.gauges)
    return service


def build_pool(settings: Settings) -> tuple[WorkerPool, int]:
    """Local processes, or Ray actors with ``--ray``; and how many slots they have."""
    options = WorkerOptions(
        device=settings.device,
        ram_share=1.0 / settings.workers,
        vram_bytes=settings.vram_bytes,
        ram_bytes=None if settings.ram_bytes is None else settings.ram_bytes // settings.workers,
        beat_seconds=settings.beat_seconds,
        allow_fake_engines=settings.allow_fake_engines,
    )
    if settings.ray is None:
        return LocalPool(options, settings.workers), settings.workers
    from yellowsound.serve.ray_worker import RayPool

    pool = RayPool(settings.ray, options, settings.ray_gpus_per_worker)
    return pool, settings.workers


def _lock(data_dir: Path) -> IO[str]:
    lock = (data_dir / "server.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise DataDirTaken(f"{data_dir} is in use by another server; choose another --data-dir") from None
    return lock


def _secret(store: JobStore) -> bytes:
    secret = store.setting("secret")
    if not secret:
        secret = secrets.token_hex(32)
        store.set_setting("secret", secret)
    return bytes.fromhex(secret)
