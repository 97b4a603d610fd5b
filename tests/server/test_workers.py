"""Workers that die, hang, run out of memory or never start; and twenty jobs that leave nothing behind."""

from __future__ import annotations

import importlib.machinery
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest


def worker_pid(api: Any) -> int:
    return int(api.get("/v1/status").json()["workers"][0]["pid"])


def is_ready(api: Any, wanted: bool = True, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while (api.get("/health").status_code == 200) is not wanted:
        assert time.monotonic() < end, api.get("/health").text
        time.sleep(0.02)


def test_health_is_503_until_a_model_is_loaded(start_server: Any) -> None:
    api = start_server(checkpoints=("fake:k6?load=1.0",), wait_ready=False)
    time.sleep(0.3)
    answer = api.get("/health")
    assert answer.status_code == 503 and answer.json()["reasons"] and "retry-after" in answer.headers
    job = api.create()
    is_ready(api)
    assert api.wait(job["id"])["status"] == "completed"


def test_killed_worker_is_replaced_and_its_job_runs_again(start_server: Any) -> None:
    api = start_server()
    job_id = api.create("[step=0.2]", num_inference_steps=5)["id"]
    api.until(job_id, lambda job: job["step"])
    pid = worker_pid(api)
    os.kill(pid, signal.SIGKILL)
    is_ready(api, False, 2)
    is_ready(api)
    job = api.wait(job_id)
    assert job["status"] == "completed" and job["attempt"] == 2
    assert any("SIGKILL" in warning for warning in job["warnings"])
    assert worker_pid(api) != pid
    assert "yellowsound_workers_replaced_total 1.0" in api.get("/metrics").text


@pytest.mark.parametrize("prompt", ["[crash]", "[die]"])
def test_job_that_kills_its_worker_fails_after_two_runs(start_server: Any, prompt: str) -> None:
    api = start_server()
    job_id, following = api.create(prompt)["id"], api.create("a")["id"]
    job = api.wait(job_id)
    assert (job["status"], job["error"]["code"], job["attempt"]) == ("failed", "worker_crashed", 2)
    assert "worker" in job["error"]["message"]
    assert api.wait(following)["status"] == "completed"


def test_out_of_memory_fails_the_job_and_replaces_the_worker(start_server: Any) -> None:
    api = start_server()
    pid = worker_pid(api)
    job = api.wait(api.create("[oom]")["id"])
    assert (job["status"], job["error"]["code"], job["attempt"]) == ("failed", "out_of_memory", 1)
    assert api.run()["status"] == "completed" and worker_pid(api) != pid


def test_hanging_job_fails_at_the_run_limit(start_server: Any) -> None:
    api = start_server(limits={"run_seconds": 1.5})
    job = api.wait(api.create("[hang]")["id"], seconds=10)
    assert (job["status"], job["error"]["code"]) == ("failed", "run_time_limit")
    assert "1.5 s" in job["error"]["message"]
    assert api.run()["status"] == "completed"


def test_job_that_says_nothing_fails_at_the_stall_limit(start_server: Any) -> None:
    api = start_server(limits={"stall_seconds": 1.5})
    job = api.wait(api.create("[hang]")["id"], seconds=10)
    assert (job["status"], job["error"]["code"]) == ("failed", "run_time_limit")


def test_worker_that_keeps_a_cancelled_job_is_replaced(start_server: Any) -> None:
    api = start_server(limits={"cancel_seconds": 1})
    job_id = api.create("[hang]")["id"]
    api.until(job_id, lambda job: job["stage"] == "denoise")
    pid = worker_pid(api)
    assert api.delete(f"/v1/videos/{job_id}").status_code == 200
    assert api.run()["status"] == "completed" and worker_pid(api) != pid


def test_stopped_worker_is_silent_and_replaced(start_server: Any) -> None:
    api = start_server(limits={"heartbeat_seconds": 1.5})
    pid = worker_pid(api)
    os.kill(pid, signal.SIGSTOP)
    is_ready(api, False, 5)
    is_ready(api)
    assert worker_pid(api) != pid


def test_checkpoint_that_cannot_be_loaded(start_server: Any) -> None:
    """Health says why, a job fails with the reason instead of waiting for ever, another model still runs."""
    api = start_server(checkpoints=("fake:bad?broken=1", "fake:good"), wait_ready=False)
    job = api.wait(api.create()["id"])
    assert job["status"] == "failed" and "broken" in job["error"]["message"]
    assert any("broken" in reason for reason in api.get("/health").json()["reasons"])
    assert api.run(model="good")["status"] == "completed"
    assert api.get("/health").status_code == 200


def test_two_workers_run_two_jobs_at_once(start_server: Any) -> None:
    api = start_server(workers=2)
    ids = [api.create("[step=0.4]")["id"] for _ in range(2)]
    for job_id in ids:
        api.wait(job_id, "in_progress")
    assert len(api.get("/v1/queue").json()["running"]) == 2
    assert all(api.wait(job_id)["status"] == "completed" for job_id in ids)


def test_next_prompt_is_encoded_ahead(start_server: Any) -> None:
    api = start_server(checkpoints=("fake:k6?step=0.3",))
    first, second = api.create("one")["id"], api.create("two")["id"]
    assert api.wait(first)["stage_durations"]["text"] > 0
    assert api.wait(second)["stage_durations"]["text"] == 0


def test_twenty_jobs_leave_nothing(start_server: Any, png: bytes) -> None:
    """T-C3: memory, files, threads and children after 20 jobs are what they were after 5."""
    api = start_server()
    pids = [os.getpid(), worker_pid(api)]

    def run(number: int) -> None:
        kind = ["plain", "picture", "cancel", "fail"][min(3, number % 5)] if number % 2 else "plain"
        if kind == "picture":
            answer = api.post("/v1/videos", data={"prompt": "p"}, files={"input_reference": ("a.png", png)})
            api.wait(answer.json()["id"])
        elif kind == "cancel":
            job_id = api.create("[step=0.05]", num_inference_steps=50)["id"]
            api.until(job_id, lambda job: job["step"])
            api.delete(f"/v1/videos/{job_id}")
        else:
            api.wait(api.create("[nan]" if kind == "fail" else "a cat")["id"])

    for number in range(5):
        run(number)
    settle(api)
    before = [sizes(pid) for pid in pids]
    for number in range(5, 20):
        run(number)
    settle(api)
    after = [sizes(pid) for pid in pids]
    for old, new in zip(before, after, strict=True):
        assert new["rss"] - old["rss"] < 15_000_000
        assert new["children"] == old["children"]
        assert new["files"] <= old["files"] + 2  # a pooled connection of the client or a reader may come and go
    assert after[1]["threads"] == before[1]["threads"]
    assert worker_pid(api) == pids[1] and not list(api.service.files.work.iterdir())


def test_beat_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beating thread once died on a half imported torch, and the worker was taken for dead a minute later."""
    from yellowsound.serve.worker_memory import free_vram_bytes, memory_beat, reset_vram_peak

    half = types.ModuleType("torch")
    half.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    monkeypatch.setattr(half.__spec__, "_initializing", True, raising=False)
    monkeypatch.setitem(sys.modules, "torch", half)
    for _ in range(2):
        beat = memory_beat()
        assert beat.vram_peak_bytes == 0 and 0 < beat.rss_bytes <= beat.rss_peak_bytes * 1.1
        assert free_vram_bytes() is None
        reset_vram_peak()
        half.__spec__ = importlib.machinery.ModuleSpec("torch", None)  # whole, but without cuda


def settle(api: Any) -> None:
    api.run()
    time.sleep(0.3)


def sizes(pid: int) -> dict[str, Any]:
    proc = Path(f"/proc/{pid}")
    return {
        "rss": int((proc / "statm").read_text().split()[1]) * 4096,
        "files": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "children": (proc / "task" / str(pid) / "children").read_text().split().__len__(),
    }


def test_a_store_that_is_full_for_a_while_fails_that_job_only(start_server: Any, monkeypatch: Any) -> None:
    """Progress cannot be noted, and for a moment not even the failure: the slot must outlive both."""
    import sqlite3

    from yellowsound.serve.jobs import JobStore

    fail, refused = JobStore.fail, []

    def full(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    def full_twice(self: Any, *args: Any, **kwargs: Any) -> bool:
        if len(refused) < 2:
            refused.append(args)
            full()
        return fail(self, *args, **kwargs)

    api = start_server()
    job_id = api.create("[step=0.2]", num_inference_steps=50)["id"]
    api.until(job_id, lambda job: job["step"])
    monkeypatch.setattr(JobStore, "fail", full_twice)
    monkeypatch.setattr(JobStore, "advance", full)
    job = api.wait(job_id)
    monkeypatch.undo()
    assert (job["status"], job["error"]["code"]) == ("failed", "storage_error") and len(refused) == 2
    assert api.run()["status"] == "completed"


def test_a_body_of_escapes_is_refused_at_once_and_freezes_nobody(start_server: Any) -> None:
    api = start_server()
    began = time.monotonic()
    answer = api.post(
        "/v1/videos",
        content=b"prompt=cat&x=" + b"%41" * 3_000_000,
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "payload_too_large"
    assert time.monotonic() - began < 5
