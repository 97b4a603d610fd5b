"""kill -9 at random moments, of the server or of a worker, with five jobs in flight.

Afterwards: every id that was answered exists, every completed job has its file, every file has its record.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from yellowsound.serve.jobs import JobStore

MAIN = [sys.executable, "-c", "from yellowsound.cli import main; main()", "serve"]
IN_FLIGHT = 5


class Victim:
    """A server process that is killed and started again on one data folder."""

    def __init__(self, checkpoint: str, folder: Path, port: int, fields: dict[str, Any]) -> None:
        self.folder, self.fields, self.ids = folder, fields, set[str]()
        options = [
            "--port",
            str(port),
            "--data-dir",
            str(folder),
            "--device",
            "cpu",
            "--no-page",
            "--log-level",
            "error",
        ]
        self.command = [*MAIN, checkpoint, *options]
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "YELLOWSOUND_TEST_ENGINES": "yes"}
        self.process = subprocess.Popen(self.command, env=environment, stderr=subprocess.DEVNULL)

    def wait_ready(self, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while self.ask("GET", "/health") != 200:
            assert time.monotonic() < end and self.process.poll() is None
            time.sleep(0.05)

    def ask(self, method: str, path: str) -> int | None:
        try:
            return int(self.client.request(method, path).status_code)
        except httpx2.TransportError:
            return None

    def top_up(self) -> None:
        """Keep five jobs in flight; only an answered id counts."""
        try:
            counts = self.client.get("/v1/status").json()["jobs"]
            for _ in range(IN_FLIGHT - counts["queued"] - counts["in_progress"]):
                answer = self.client.post("/v1/videos", json=self.fields)
                assert answer.status_code == 200, answer.text
                self.ids.add(answer.json()["id"])
        except httpx2.TransportError:
            pass

    def kill(self, what: str) -> None:
        if what == "server":
            self.process.kill()
            self.process.wait()
            self.start()
            self.wait_ready()
            return
        try:
            pid = self.client.get("/v1/status").json()["workers"][0].get("pid")
            if pid:
                os.kill(pid, signal.SIGKILL)
        except (httpx2.TransportError, ProcessLookupError):
            pass

    def wait_done(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            counts = self.client.get("/v1/status").json()["jobs"]
            if counts["queued"] + counts["in_progress"] == 0:
                return
            assert time.monotonic() < end, counts
            time.sleep(0.1)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


def rampage(victim: Victim, kills: int, seed: int, pause: float, seconds: float) -> None:
    chance = random.Random(seed)
    try:
        victim.wait_ready()
        for _ in range(kills):
            victim.top_up()
            time.sleep(chance.random() * pause)
            victim.kill(chance.choice(("server", "worker")))
        victim.wait_ready()
        victim.top_up()
        victim.wait_done(seconds)
    finally:
        victim.close()
    check(victim)


def check(victim: Victim) -> None:
    store = JobStore(victim.folder / "jobs.sqlite3")
    try:
        known, completed = store.ids(), store.ids("completed")
        failed = [store.get(job_id) for job_id in store.ids("failed")]
    finally:
        store.close()
    assert victim.ids <= known, "an answered id was lost"
    files = {path.stem for path in (victim.folder / "videos").iterdir()}
    assert files == completed, "files and completed records differ"
    assert not list((victim.folder / "work").iterdir())
    assert completed, "nothing was ever completed"
    for job in failed:
        assert job is not None and job.error_code in ("worker_crashed", "server_restarted") and job.error_message
        assert job.attempt == 2


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


FAKE = {"prompt": "a", "num_inference_steps": 6}


def test_six_kills(tmp_path: Path) -> None:
    rampage(Victim("fake:k6?step=0.03", tmp_path, free_port(), FAKE), 6, seed=1, pause=0.8, seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills(tmp_path: Path) -> None:
    rampage(Victim("fake:k6?step=0.03", tmp_path, free_port(), FAKE), 50, seed=2, pause=0.8, seconds=120)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_kills_on_the_real_engine(tmp_path: Path) -> None:
    fields = {"prompt": "a red ball", "num_frames": 9, "size": "64x64", "num_inference_steps": 4}
    rampage(Victim("demo", tmp_path, free_port(), fields), 5, seed=3, pause=8.0, seconds=240)
