"""The official Python client in two pinned versions, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
VERSIONS = {"v2": "2.54.0", "v3": "3.57.0"}
PARTS = ["walk_" + part for part in ("create", "read", "delete", "errors", "full_queue", "retries", "async")]
KEY = "walk-key"


@pytest.fixture(scope="module")
def clients() -> Path:
    """The folder that holds both versions; installed now if they are not there and a registry can be reached."""
    folder = HERE / "clients"
    script = HERE.parents[1] / "scripts" / "install-clients"
    done = subprocess.run([script], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the official clients are not installed and no registry answers: {done.stderr[-200:]}")
    return folder


@pytest.fixture(scope="module")
def keyed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    conftest: Any = sys.modules[next(name for name in sys.modules if name.endswith("server.conftest"))]
    settings = conftest.fake_settings(
        tmp_path_factory.mktemp("clients"), api_keys=(KEY,), limits={"queue": 30, "queue_per_key": 30}
    )
    server = conftest.RunningServer(settings)
    yield f"{server.url}/v1"
    server.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_walk(clients: Path, keyed_url: str, version: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(clients / version), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(HERE / "openai_walk.py"), keyed_url, KEY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [VERSIONS[version], *PARTS]
