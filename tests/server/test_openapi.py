"""Requests made up from the OpenAPI document: no answer may be a server error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# streams do not end and the waiting route waits for clips: both have tests of their own
LEFT_OUT = "/v1/(events|videos/sync|videos/.*/events)"


def test_document_describes_every_part(api: Any) -> None:
    document = api.get("/openapi.json").json()
    assert {"/v1/videos", "/v1/videos/{video_id}", "/v1/videos/{video_id}/content", "/health"} <= set(document["paths"])
    bodies = document["paths"]["/v1/videos"]["post"]["requestBody"]["content"]
    assert set(bodies) == {"multipart/form-data", "application/json", "application/x-www-form-urlencoded"}
    names = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(names) == len(set(names))


def test_no_server_error_from_made_up_requests(start_server: Any, tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("schemathesis is not installed")
    api = start_server(checkpoints=("fake:k6?step=0",), limits={"queue": 100_000})
    command = [
        program, "run", f"{str(api.base_url).rstrip('/')}/openapi.json", "--checks", "not_a_server_error",
        "--exclude-path-regex", LEFT_OUT, "--phases", "examples,coverage,fuzzing", "--max-examples", "4",
        "--max-time", "20", "--seed", "1", "--no-color", "--generation-database", "none",
    ]  # fmt: skip
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "No issues found" in done.stdout or "passed" in done.stdout
    assert api.get("/health").status_code == 200
