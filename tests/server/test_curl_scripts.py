"""Shell lines that people already have, with only the port changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

# sleep is shortened and jq replaced where it is missing: neither is part of what is tested
PRELUDE = """
set -u
sleep() { command sleep 0.1; }
command -v jq >/dev/null || jq() { python3 -c 'import json,sys; print(json.load(sys.stdin)[sys.argv[2][1:]])' "$@"; }
"""

SHOWCASE = """
until curl -sf http://localhost:8094/health > /dev/null; do sleep 5; done
ID=$(curl -s http://localhost:8094/v1/videos \\
  -F "prompt=A cat walks on the grass, realistic" \\
  -F size=864x480 -F num_frames=121 -F num_inference_steps=10 -F guidance_scale=1.0 -F seed=42 | jq -r .id)
while [ "$(curl -s http://localhost:8094/v1/videos/$ID | jq -r .status)" != completed ]; do sleep 10; done
curl -s http://localhost:8094/v1/videos/$ID/content -o clip.mp4
"""

IMMEDIATE = """
ID=$(curl -s -X POST http://localhost:8094/v1/videos \\
  -F "prompt=[step=0.3] a fox" -F size=64x48 -F num_frames=125 -F num_inference_steps=50 -F seed=42 | jq -r .id)
curl -s http://localhost:8094/v1/videos/$ID > status.json
curl -s -o kandinsky6.mp4 -w '%{http_code}' http://localhost:8094/v1/videos/$ID/content
"""

NUMBERS = """
ID=$(curl -sS -X POST http://localhost:8094/v1/videos -H "Accept: application/json" \\
  -F "prompt=a dog" -F width=832 -F height=480 -F num_frames=80 -F fps=16 -F num_inference_steps=4 \\
  -F guidance_scale=4.0 -F guidance_scale_2=4.0 -F boundary_ratio=0.875 -F flow_shift=5.0 -F seed=42 | jq -r .id)
while [ "$(curl -sS http://localhost:8094/v1/videos/$ID | jq -r .status)" = queued ]; do sleep 2; done
while [ "$(curl -sS http://localhost:8094/v1/videos/$ID | jq -r .status)" = in_progress ]; do sleep 2; done
curl -sS http://localhost:8094/v1/videos/$ID > status.json
curl -sS -L http://localhost:8094/v1/videos/$ID/content -o clip.mp4
"""


def shell(script: str, api: Any, folder: Path) -> str:
    text = PRELUDE + script.replace("localhost:8094", str(api.base_url).split("//")[1].strip("/"))
    done = subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_showcase_script(start_server: Any, tmp_path: Path) -> None:
    api = start_server(checkpoints=("fake:k6?large=1&distill=1",))
    shell(SHOWCASE, api, tmp_path)
    assert (tmp_path / "clip.mp4").read_bytes()[4:8] == b"ftyp"
    job = api.get("/v1/videos").json()["data"][0]
    assert (job["size"], job["num_frames"], job["seed"], job["seconds"]) == ("864x480", 121, 42, "5.042")


def test_content_fetched_too_early_is_not_taken_for_a_clip(api: Any, tmp_path: Path) -> None:
    assert shell(IMMEDIATE, api, tmp_path) == "404"
    assert "video_not_ready" in (tmp_path / "kandinsky6.mp4").read_text()


def test_other_servers_fields(start_server: Any, tmp_path: Path) -> None:
    api = start_server(checkpoints=("fake:k6?large=1",), allow_fps=True)
    shell(NUMBERS, api, tmp_path)
    assert (tmp_path / "clip.mp4").read_bytes()[4:8] == b"ftyp"
    job = api.get("/v1/videos").json()["data"][0]
    assert (job["num_frames"], job["fps"]) == (81, 16)
    assert any("80" in warning for warning in job["warnings"])
