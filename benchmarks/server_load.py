"""How the server holds up under a long queue: many jobs waiting, many clients polling, one worker with a fake engine.

``python benchmarks/server_load.py --jobs 1000 --pollers 50`` starts a server of its own on loopback, fills the queue
while pollers ask for states, lets the worker empty it, and prints one table. Nothing here measures a model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2

STEP_SECONDS = 0.01
POLL_SECONDS = 1.0
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was seen: milliseconds of create and poll calls, errors by kind, resident bytes of the API process."""

    jobs: int
    pollers: int
    submit_p50_ms: float
    submit_p99_ms: float
    submit_max_ms: float
    poll_p50_ms: float
    poll_p99_ms: float
    polls: int
    errors: dict[str, int]
    completed: int
    rss_after_submit_mb: float
    rss_half_way_mb: float
    rss_end_mb: float
    seconds: float

    @property
    def growth_mb(self) -> float:
        """Memory gained by the second half of the jobs: a leak shows here, a warm cache does not."""
        return self.rss_end_mb - self.rss_half_way_mb


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(folder: Path, port: int, jobs: int) -> subprocess.Popen[bytes]:
    """The real command with a fake engine."""
    command = [
        sys.executable, "-c", "from yellowsound.cli import main; main()", "serve", f"fake:load?step={STEP_SECONDS}",
        "--port", str(port), "--data-dir", str(folder), "--queue-limit", str(jobs), "--log-level", "warning",
        "--no-page",
    ]  # fmt: skip
    return subprocess.Popen(command, env={**os.environ, "YELLOWSOUND_TEST_ENGINES": "yes"})


async def wait_ready(client: httpx2.AsyncClient) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError("the server did not become ready")


class Load:
    """The clients of one run and what they saw."""

    def __init__(self, client: httpx2.AsyncClient, jobs: int, pollers: int) -> None:
        self.client, self.jobs, self.pollers = client, jobs, pollers
        self.ids: list[str] = []
        self.submit_ms: list[float] = []
        self.poll_ms: list[float] = []
        self.errors: Counter[str] = Counter()
        self.done = asyncio.Event()

    async def submit(self) -> None:
        """All jobs, one after another, as fast as they are accepted."""
        for number in range(self.jobs):
            fields = {"prompt": f"job {number}", "num_frames": 5, "num_inference_steps": 2, "size": "32x32"}
            answer, took = await self._timed("POST", "/v1/videos", json=fields)
            if answer is not None:
                self.submit_ms.append(took)
                self.ids.append(answer.json()["id"])

    async def poll(self, number: int) -> None:
        """One client: asks for a job of its own choice about once a second until all is done."""
        await asyncio.sleep(number / self.pollers * POLL_SECONDS)
        turn = number
        while not self.done.is_set():
            if self.ids:
                _, took = await self._timed("GET", f"/v1/videos/{self.ids[turn % len(self.ids)]}")
                self.poll_ms.append(took)
                turn += self.pollers
            await asyncio.sleep(POLL_SECONDS)

    async def wait_until(self, completed: int, seconds: float) -> int:
        """Jobs completed once there are ``completed``, or when ``seconds`` are over."""
        end = time.monotonic() + seconds
        while True:
            counts = (await self.client.get("/v1/status")).json()["jobs"]
            if counts["completed"] >= completed or time.monotonic() > end:
                return int(counts["completed"])
            await asyncio.sleep(0.5)

    async def _timed(self, method: str, path: str, json: object = None) -> tuple[httpx2.Response | None, float]:
        began = time.perf_counter()
        try:
            answer = await self.client.request(method, path, json=json)
        except httpx2.TransportError as error:
            self.errors[type(error).__name__] += 1
            return None, 0.0
        took = (time.perf_counter() - began) * 1000
        if answer.status_code != 200:
            self.errors[f"{method} {answer.status_code}"] += 1
            return None, took
        return answer, took


async def measure(client: httpx2.AsyncClient, pid: int, jobs: int, pollers: int, seconds: float) -> LoadReport:
    """Run the load against a ready server whose API process is ``pid``."""
    load, began = Load(client, jobs, pollers), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(pollers):
            group.create_task(load.poll(number))
        await load.submit()
        after_submit = resident_mb(pid)
        await load.wait_until(jobs // 2, seconds)
        half_way = resident_mb(pid)
        completed = await load.wait_until(jobs, seconds)
        load.done.set()
    return LoadReport(
        jobs=jobs,
        pollers=pollers,
        submit_p50_ms=quantile(load.submit_ms, 0.5),
        submit_p99_ms=quantile(load.submit_ms, 0.99),
        submit_max_ms=max(load.submit_ms),
        poll_p50_ms=quantile(load.poll_ms, 0.5),
        poll_p99_ms=quantile(load.poll_ms, 0.99),
        polls=len(load.poll_ms),
        errors=dict(load.errors),
        completed=completed,
        rss_after_submit_mb=after_submit,
        rss_half_way_mb=half_way,
        rss_end_mb=resident_mb(pid),
        seconds=time.monotonic() - began,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ``values``; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def run(jobs: int, pollers: int, seconds: float) -> LoadReport:
    """Start a server, load it, stop it."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = start_server(Path(folder), port, jobs)
        try:
            limits = httpx2.Limits(max_connections=pollers + 2, max_keepalive_connections=pollers + 2)
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits) as client:
                await wait_ready(client)
                return await measure(client, process.pid, jobs, pollers, seconds)
        finally:
            process.terminate()
            process.wait(30)


def table(report: LoadReport) -> str:
    """The report as one table of two columns."""
    submit = f"{report.submit_p50_ms:.1f}, {report.submit_p99_ms:.1f}, {report.submit_max_ms:.1f} ms"
    rows = [
        ("jobs, pollers", f"{report.jobs}, {report.pollers}"),
        ("submit p50, p99, max", submit),
        ("poll p50, p99", f"{report.poll_p50_ms:.1f}, {report.poll_p99_ms:.1f} ms ({report.polls} polls)"),
        ("errors", ", ".join(f"{n} {kind}" for kind, n in report.errors.items()) or "none"),
        ("completed", f"{report.completed} in {report.seconds:.0f} s"),
        (
            "API memory after submit, half way, end",
            f"{report.rss_after_submit_mb:.1f}, {report.rss_half_way_mb:.1f}, {report.rss_end_mb:.1f} MB",
        ),
        ("growth over the second half", f"{report.growth_mb:+.1f} MB"),
    ]  # fmt: skip
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pollers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=900.0, help="give up waiting after this long")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, help="also write JSON, with command, commit and machine, to this file")
    options = parser.parse_args()
    report = asyncio.run(run(options.jobs, options.pollers, options.seconds))
    row = asdict(report) | {"growth_mb": report.growth_mb}
    print(json.dumps(row) if options.json else table(report))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row | facts(), indent=2) + "\n")


def facts() -> dict[str, object]:
    """What a figure needs to be believed: command, commit, machine, load at the end."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
