"""Models, capabilities, metrics, status, and an API process that never saw torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from yellowsound.serve.served import open_models
from yellowsound.serve.settings import Limits, Settings


def test_models(api: Any) -> None:
    listed = api.get("/v1/models").json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["k6", "lite", "full"]
    assert api.get("/v1/models/lite").json()["id"] == "lite"
    missing = api.get("/v1/models/sora-2")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_aliases(start_server: Any) -> None:
    api = start_server(checkpoints=("fake:k6", "fake:lite?distill=1"), model_aliases=("sora-2", "small=lite"))
    assert {model["id"] for model in api.get("/v1/models").json()["data"]} == {"k6", "sora-2", "lite", "small"}
    assert api.create(model="sora-2")["model"] == "k6" and api.create(model="small")["model"] == "lite"


def test_capabilities(api: Any) -> None:
    told = api.get("/v1/videos/capabilities").json()
    models = {model["id"]: model for model in told["models"]}
    assert models["full"]["defaults"]["size"] == "864x480" and models["full"]["sides"]["min"] == 256
    assert models["k6"]["sides"]["min"] == 16 and models["lite"]["variant"] == "distilled"
    assert told["limits"]["prompt_characters"] == 32_000 and told["picture_urls"] is False


def test_metrics(api: Any) -> None:
    api.run()
    api.wait(api.create("[nan]")["id"])
    text = api.get("/metrics").text
    for name in (
        "yellowsound_queue_length", 'yellowsound_jobs{status="completed"}', "yellowsound_job_wait_seconds_bucket",
        'yellowsound_stage_seconds_count{model="k6",stage="denoise"}', "yellowsound_clips_last_hour",
        'yellowsound_jobs_failed_total{code="internal_error",model="k6"}', "yellowsound_disk_free_bytes",
        "yellowsound_vram_peak_bytes", "yellowsound_ram_peak_bytes", "yellowsound_workers_ready 1.0",
        "yellowsound_frames_total", "yellowsound_clip_bytes_total",
    ):  # fmt: skip
        assert name in text


def test_cancels_are_counted_and_health_answers_head(api: Any) -> None:
    job = api.create("[step=0.5]")
    api.post(f"/v1/videos/{job['id']}/cancel")
    assert 'yellowsound_jobs_failed_total{code="cancelled",model="k6"}' in api.get("/metrics").text
    assert api.head("/health").status_code == 200


def test_status_names_the_last_failures(api: Any) -> None:
    job = api.wait(api.create("[nan]")["id"])
    status = api.get("/v1/status").json()
    assert status["ready"] and status["last_failures"][0]["id"] == job["id"]
    assert status["workers"][0]["rss_bytes"] > 0 and status["disk_free_bytes"] > 0


def test_every_answer_has_an_id_and_nothing_names_the_host(api: Any) -> None:
    job = api.run()
    for path in ("/health", "/v1/videos", f"/v1/videos/{job['id']}", "/nothing", "/v1/status"):
        answer = api.get(path)
        assert answer.headers["x-request-id"].startswith("req_")
        assert str(api.service.settings.data_dir) not in answer.text
    assert api.get("/nothing").json()["error"]["code"] == "not_found"


def test_api_process_never_imports_torch() -> None:
    """Rule 5: a request runs through the whole application and the heavy packages are still not there."""
    script = """
import sys, tempfile, pathlib, threading, time
import httpx2, uvicorn, socket
from yellowsound.serve.app import create_app
from yellowsound.serve.logging import configure_logging
from yellowsound.serve.main import Server
from yellowsound.serve.settings import Settings
configure_logging("error")
folder = pathlib.Path(tempfile.mkdtemp())
app = create_app(Settings(checkpoints=("fake:k6",), data_dir=folder, allow_fake_engines=True, disk_floor_bytes=1))
sock = socket.socket(); sock.bind(("127.0.0.1", 0))
server = Server(uvicorn.Config(app, log_level="error"), app.state.service)
thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}); thread.start()
url = f"http://127.0.0.1:{sock.getsockname()[1]}"
while not server.started: time.sleep(0.02)
answer = httpx2.post(url + "/v1/videos/sync", json={"prompt": "a"}, timeout=60)
assert answer.status_code == 200, answer.text
heavy = {"torch", "diffusers", "transformers", "accelerate"} & set(sys.modules)
server.should_exit = True; thread.join(); sock.close()
assert not heavy, heavy
print("light")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("light"), done.stderr


def test_fake_engines_need_the_test_setting() -> None:
    with pytest.raises(ValueError, match="tests only"):
        open_models(Settings(checkpoints=("fake:k6",)))


def test_settings_refuse_nonsense() -> None:
    wrongs: list[dict[str, Any]] = [{"workers": 0}, {"checkpoints": ()}, {"recipes": ()}]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            Settings(**wrong)
    with pytest.raises(ValueError, match="queue"):
        Limits(queue=0)


def test_two_checkpoints_of_one_name_are_refused() -> None:
    settings = Settings(checkpoints=("fake:k6", "fake:k6?distill=1"), allow_fake_engines=True)
    with pytest.raises(ValueError, match="NAME=FOLDER"):
        open_models(settings)


def test_what_fits_no_plan_is_refused_at_once(start_server: Any, tiny_distill: Any) -> None:
    api = start_server(checkpoints=(str(tiny_distill),), device="cpu", ram_bytes=1 << 30, wait_ready=False)
    answer = api.send_form(prompt="a", size="1920x1088", num_frames=481)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "does_not_fit"
    assert "fewer frames" in answer.json()["error"]["message"] and api.count() == 0
