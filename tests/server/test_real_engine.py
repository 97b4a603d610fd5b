"""The server over the real engine on the tiny checkpoints: what only a model can show."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SMALL = {"size": "32x48", "num_frames": 5, "num_inference_steps": 2, "seed": 0}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, tiny_sft: Path, tiny_distill: Path) -> Iterator[Any]:
    conftest: Any = sys.modules[next(name for name in sys.modules if name.endswith("server.conftest"))]
    checkpoints = (f"base={tiny_sft}", f"distilled={tiny_distill}")
    settings = conftest.fake_settings(tmp_path_factory.mktemp("real"), checkpoints=checkpoints, device="cpu")
    server = conftest.RunningServer(settings, wait_ready=False)
    server.wait_ready(120)
    with conftest.Api(server.url, server.service) as api:
        yield api
    server.stop()


def pixels(api: Any, job: dict[str, Any]) -> str:
    """Hash of the decoded last frame, which is lossless after the codec."""
    return hashlib.sha256(api.get(job["last_frame_url"]).content).hexdigest()


def run(api: Any, prompt: str = "a cat", **fields: Any) -> dict[str, Any]:
    job = api.wait(api.create(prompt, **{**SMALL, **fields})["id"], seconds=90)
    assert job["status"] == "completed", job["error"]
    return dict(job)


def test_job_tells_what_the_engine_did(real: Any) -> None:
    job = run(real)
    assert (job["size"], job["num_frames"], job["seed"], job["model"]) == ("32x48", 5, 0, "base")
    assert set(job["stage_durations"]) >= {"text", "denoise", "decode"} and job["peak_memory_mb"] > 0
    assert any("50 recommended" in warning for warning in job["warnings"])
    assert job["preview_url"] and real.get(job["preview_url"]).content[8:12] == b"WEBP"


def test_empty_negative_prompt_is_not_the_default_one(real: Any) -> None:
    """T-A1: with guidance it changes the picture; without the field the model's own text is used."""
    default = pixels(real, run(real, guidance_scale=3.0))
    assert pixels(real, run(real, guidance_scale=3.0, negative_prompt="")) != default
    assert pixels(real, run(real, guidance_scale=3.0)) == default


def test_same_clip_after_another_prompt_and_another_model(real: Any) -> None:
    """A, B, other model, A: nothing of what came between stays behind."""
    first = pixels(real, run(real, "A"))
    assert pixels(real, run(real, "B")) != first
    run(real, "A", model="distilled")
    assert pixels(real, run(real, "A")) == first


def test_picture_job(real: Any, png: bytes) -> None:
    fields = {"prompt": "a", **{name: str(value) for name, value in SMALL.items()}}
    answer = real.post("/v1/videos", data=fields, files={"input_reference": ("a.png", png)})
    job = real.wait(answer.json()["id"], seconds=90)
    assert job["status"] == "completed" and job["has_image"]


def test_delete_stops_the_running_clip(real: Any) -> None:
    alone = pixels(real, run(real, "b", seed=5))
    long = real.create("long", size="64x96", num_frames=25, num_inference_steps=200)["id"]
    following = real.create("b", **{**SMALL, "seed": 5})["id"]
    real.until(long, lambda job: job["step"], seconds=60)
    assert real.delete(f"/v1/videos/{long}").status_code == 200
    real.wait(following, "in_progress", "completed", seconds=10)
    assert pixels(real, real.wait(following, seconds=60)) == alone
    assert not list(real.service.files.root.rglob(f"*{long}*"))


@pytest.mark.slow
def test_real_jobs_leave_no_memory(real: Any, png: bytes) -> None:
    """T-C3 on the engine itself: the worker grows less than 1 MB a job, cancelled and pictured ones included."""
    fields = {name: str(value) for name, value in SMALL.items()}

    def one(number: int) -> None:
        if number % 5 == 2:
            answer = real.post("/v1/videos", data={"prompt": "p", **fields}, files={"input_reference": ("a.png", png)})
            assert real.wait(answer.json()["id"], seconds=90)["status"] == "completed"
        elif number % 5 == 4:
            job_id = real.create("c", **{**SMALL, "num_inference_steps": 100})["id"]
            real.until(job_id, lambda job: job["step"], seconds=60)
            real.delete(f"/v1/videos/{job_id}")
        else:
            run(real, f"prompt {number}")

    def resident() -> tuple[int, int]:
        run(real, "settle")
        proc = Path(f"/proc/{real.get('/v1/status').json()['workers'][0]['pid']}")
        return int((proc / "statm").read_text().split()[1]) * 4096, len(list((proc / "fd").iterdir()))

    for number in range(5):
        one(number)
    rss, files = resident()
    for number in range(5, 20):
        one(number)
    rss_after, files_after = resident()
    assert rss_after - rss < 15_000_000 and files_after == files
