"""A real server over loopback: uvicorn in a thread, a worker process with the fake engine, a patient client."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from PIL import Image

from yellowsound.serve.app import create_app
from yellowsound.serve.logging import configure_logging
from yellowsound.serve.main import Server
from yellowsound.serve.settings import Limits, Settings

configure_logging("error", as_json=True)
collect_ignore = ["clients"]  # the official clients bring tests of their own


class Api(httpx2.Client):
    """A client of one running server, with the waiting that tests need."""

    def __init__(self, base_url: str, service: Any, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(base_url=base_url, headers=headers, timeout=30)
        self.service = service

    def create(self, prompt: str = "a cat", **fields: Any) -> dict[str, Any]:
        """An accepted job, sent as multipart text parts."""
        answer = self.send_form(prompt=prompt, **fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def send_form(self, **fields: Any) -> httpx2.Response:
        return self.post("/v1/videos", files={name: (None, str(value)) for name, value in fields.items()})

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.get(f"/v1/videos/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait(self, job_id: str, *statuses: str, seconds: float = 30) -> dict[str, Any]:
        """The job once it has one of ``statuses`` (or has ended)."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.job(job_id)
            if job["status"] in (statuses or ("completed", "failed")):
                return job
            time.sleep(0.02)
        raise AssertionError(f"still {job['status']} after {seconds} s: {job}")

    def run(self, prompt: str = "a cat", **fields: Any) -> dict[str, Any]:
        """A completed job."""
        job = self.wait(self.create(prompt, **fields)["id"])
        assert job["status"] == "completed", job["error"]
        return job

    def until(self, job_id: str, is_so: Callable[[dict[str, Any]], Any], seconds: float = 20) -> dict[str, Any]:
        """The job once ``is_so`` holds."""
        end = time.monotonic() + seconds
        while not is_so(job := self.job(job_id)):
            assert time.monotonic() < end, job
            time.sleep(0.01)
        return job

    def count(self) -> int:
        return len(self.get("/v1/videos", params={"limit": 100}).json()["data"])


class RunningServer:
    """uvicorn in a thread; ``stop`` ends it and its workers."""

    def __init__(self, settings: Settings, wait_ready: bool = True) -> None:
        app = create_app(settings)
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.service = app.state.service
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
        self.server = Server(config, self.service)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        self._wait(lambda: self.server.started, 60)  # before that a request is refused
        if wait_ready:
            self.wait_ready()

    def wait_ready(self, seconds: float = 60) -> None:
        self._wait(lambda: self.service.dispatcher.can_serve, seconds)

    def _wait(self, is_so: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end and self.thread.is_alive(), "the server did not become ready"
            time.sleep(0.02)

    def stop(self) -> None:
        self.service.broadcast.stop()
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.socket.close()


StartServer = Callable[..., Api]


def fake_settings(folder: Path, **changes: Any) -> Settings:
    """Settings of a test server: fake engines, quick beats, hardly any disk floor."""
    limits = replace(Limits(queue=100), **changes.pop("limits", {}))
    usual: dict[str, Any] = {
        "checkpoints": ("fake:k6",),
        "data_dir": folder,
        "allow_fake_engines": True,
        "disk_floor_bytes": 1,
        "beat_seconds": 0.2,
        "poll_after_ms": 50,
        "page": False,
        "limits": limits,
    }
    return Settings(**{**usual, **changes})


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers with changed settings; all end with the test. ``data_dir`` defaults to one folder per test."""
    running: list[tuple[RunningServer, Api]] = []

    def start(*, key: str | None = None, wait_ready: bool = True, **changes: Any) -> Api:
        folder = changes.pop("data_dir", tmp_path / "data")
        server = RunningServer(fake_settings(folder, **changes), wait_ready)
        api = Api(server.url, server.service, key)
        api.stop = lambda: _stop(running, server, api)  # type: ignore[attr-defined]
        running.append((server, api))
        return api

    yield start
    for server, api in list(running):
        _stop(running, server, api)


def _stop(running: list[tuple[RunningServer, Api]], server: RunningServer, api: Api) -> None:
    if (server, api) in running:
        running.remove((server, api))
        api.close()
        server.stop()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("shared-server")
    models = ("fake:k6", "fake:lite?distill=1", "fake:full?large=1")
    server = RunningServer(fake_settings(folder, checkpoints=models, limits={"queue": 1000}))
    yield server
    server.stop()


@pytest.fixture
def api(shared_server: RunningServer) -> Iterator[Api]:
    """A client of the server that tests share; nothing of theirs is left waiting in it."""
    with Api(shared_server.url, shared_server.service) as client:
        yield client
        queue = client.get("/v1/queue").json()
        for job in queue["queued"] + queue["running"]:
            client.delete(f"/v1/videos/{job['id']}")


@pytest.fixture(scope="session")
def png() -> bytes:
    """A good picture of 40x30."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()
