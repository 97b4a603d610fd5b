"""The command: starts, serves, stops in order on a signal, and says what is wrong in one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from yellowsound.cli.serve import _keys

MAIN = [sys.executable, "-c", "from yellowsound.cli import main; main()", "serve"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "YELLOWSOUND_TEST_ENGINES": "yes"}
    return subprocess.Popen([*MAIN, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def wait_ready(url: str, process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        assert process.poll() is None and time.monotonic() < end
        try:
            if httpx2.get(f"{url}/health").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.05)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_serves_and_stops_on_a_signal(tmp_path: Path, by: signal.Signals) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = start("fake:k6", "--port", str(port), "--data-dir", str(tmp_path), "--no-page")
    try:
        wait_ready(url, process)
        job: dict[str, Any] = httpx2.post(f"{url}/v1/videos", json={"prompt": "[step=1]"}).json()
        with httpx2.stream("GET", f"{url}/v1/videos/{job['id']}/events") as events:
            next(events.iter_lines())
            began = time.monotonic()
            process.send_signal(by)
            assert process.wait(30) in (0, -by, 128 + by, 130)
            assert time.monotonic() - began < 15
        log = process.stderr.read() if process.stderr else ""
        assert '"event": "serving"' in log and "Traceback" not in log
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/no/such/folder",), "/no/such/folder"),
        (("fake:k6", "fake:k6"), "NAME=FOLDER"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    environment = {**os.environ, "YELLOWSOUND_TEST_ENGINES": "yes"}
    command = [*MAIN, *arguments, "--port", str(free_port()), "--data-dir", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr
    assert done.stderr.count("\n") == 1 and "TRACEBACK" not in done.stderr.upper()


def test_fake_engines_are_not_for_users(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "YELLOWSOUND_TEST_ENGINES"}
    command = [*MAIN, "fake:k6", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "tests only" in done.stderr


def test_keys_come_from_option_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("three\n\n one\n")
    monkeypatch.setenv("YELLOWSOUND_API_KEY", "two, one")
    assert _keys(("one",), file) == ("one", "two", "three")


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_is_none_is_refused_by_name(port: int) -> None:
    from yellowsound.request import RequestError
    from yellowsound.serve.main import listen

    with pytest.raises(RequestError, match=f"port={port}"):
        listen("127.0.0.1", port)


def test_a_taken_port_is_said_in_one_line() -> None:
    from yellowsound.serve.main import listen

    first = listen("127.0.0.1", 0)
    first.listen()
    assert first.proto == socket.IPPROTO_TCP  # else every answer waits 40 ms for Nagle
    port = first.getsockname()[1]
    with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}: address already in use"):
        listen("127.0.0.1", port)
    first.close()
