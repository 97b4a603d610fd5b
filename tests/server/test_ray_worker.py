"""Ray: two CPU actors run jobs, one of them is killed, its job runs again elsewhere; clips come back as bytes."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"),
    pytest.mark.filterwarnings("default"),  # Ray leaves sockets and files to the collector
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of this machine with two CPUs and a small object store."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(num_cpus=2, num_gpus=0, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_two_actors_one_is_killed(cluster: Any, start_server: Any) -> None:
    api = start_server(
        ray="auto",
        workers=2,
        ray_gpus_per_worker=0,
        shared_folder=False,
        limits={"start_seconds": 120},
        wait_ready=False,
    )
    end = time.monotonic() + 120
    while sum(worker["ready"] for worker in api.get("/v1/status").json()["workers"]) < 2:
        assert time.monotonic() < end, api.get("/v1/status").text
        time.sleep(0.2)
    jobs = [api.create("[step=0.5]", num_inference_steps=8)["id"] for _ in range(2)]
    waiting = api.create("a")["id"]
    for job_id in jobs:
        api.until(job_id, lambda job: job["step"])
    assert api.job(waiting)["status"] == "queued", "a job goes only to a free actor"
    workers = {worker["job"]: worker["pid"] for worker in api.get("/v1/status").json()["workers"]}
    os.kill(workers[jobs[0]], 9)
    ended = [api.wait(job_id, seconds=120) for job_id in (*jobs, waiting)]
    assert [job["status"] for job in ended] == ["completed"] * 3, [job["error"] for job in ended]
    assert (ended[0]["attempt"], ended[1]["attempt"]) == (2, 1)
    for job in ended:
        assert api.get(job["content_url"]).content[4:8] == b"ftyp"


def test_cancel_reaches_a_running_actor(cluster: Any, start_server: Any) -> None:
    api = start_server(ray="auto", workers=1, ray_gpus_per_worker=0, limits={"start_seconds": 120}, wait_ready=False)
    job_id = api.create("[step=0.5]", num_inference_steps=60)["id"]
    api.until(job_id, lambda job: job["step"], seconds=120)
    following = api.create("a")["id"]
    api.delete(f"/v1/videos/{job_id}")
    assert api.wait(following, seconds=20)["status"] == "completed"


def test_without_ray_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from yellowsound.serve.ray_worker import _import_ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match=r"yellowsound\[ray\]"):
        _import_ray()
