"""Event streams: snapshot first, news in order, resumed where they broke off, ended with the job."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any


def frames(answer: Any) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(event, data, id) of a stream."""
    event: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif "data" in event:
            yield event["event"], json.loads(event["data"]), int(event["id"])
            event = {}


def test_snapshot_then_progress_then_the_end(api: Any) -> None:
    job_id = api.create("[step=0.1]")["id"]
    with api.stream("GET", f"/v1/videos/{job_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = list(frames(answer))
    names = [name for name, _, _ in seen]
    assert names[0] == "snapshot" and names[-1] == "completed" and names.count("completed") == 1
    assert {"progress", "preview"} <= set(names)
    assert seen[0][1]["id"] == job_id and seen[-1][1]["video"]["status"] == "completed"
    numbers = [number for _, _, number in seen]
    assert numbers == sorted(set(numbers))
    progress = [data["progress"] for _, data, _ in seen]
    assert progress == sorted(progress)


def test_resumes_after_last_event_id(api: Any) -> None:
    job = api.run()
    path = f"/v1/videos/{job['id']}/events"
    with api.stream("GET", path, headers={"Last-Event-ID": "0"}) as answer:
        whole = list(frames(answer))
    assert whole[0][0] == "queued" and whole[-1][0] == "completed"
    middle = whole[len(whole) // 2][2]
    with api.stream("GET", path, headers={"Last-Event-ID": str(middle)}) as answer:
        rest = list(frames(answer))
    assert [number for _, _, number in rest] == [number for _, _, number in whole if number > middle]


def test_ended_job_is_one_snapshot(api: Any) -> None:
    job = api.run()
    with api.stream("GET", f"/v1/videos/{job['id']}/events") as answer:
        assert [name for name, _, _ in frames(answer)] == ["snapshot"]


def test_stream_ends_when_the_job_is_deleted(api: Any) -> None:
    job_id = api.create("[step=0.5]", num_inference_steps=30)["id"]
    with api.stream("GET", f"/v1/videos/{job_id}/events") as answer:
        stream = frames(answer)
        next(stream)
        threading.Timer(0.2, lambda: api.service.store.delete(job_id)).start()
        assert [name for name, _, _ in stream][-1] == "deleted"


def test_global_stream_tells_of_every_job(api: Any) -> None:
    with api.stream("GET", "/v1/events") as answer:
        stream = frames(answer)
        assert next(stream)[0] == "ready"
        ids = {api.create()["id"], api.create()["id"]}
        done = set()
        for name, data, _ in stream:
            if name == "completed":
                done.add(data["id"])
            if done == ids:
                break


def test_stream_ends_when_the_server_stops(start_server: Any) -> None:
    api = start_server()
    job_id = api.create("[step=1]", num_inference_steps=60)["id"]
    with api.stream("GET", f"/v1/videos/{job_id}/events") as answer:
        stream = frames(answer)
        next(stream)
        threading.Timer(0.3, api.service.broadcast.stop).start()
        assert len(list(stream)) >= 0  # it ends instead of holding the server open
