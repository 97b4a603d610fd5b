"""JobStore alone: claiming, attempts, late words, keys, retention, migrations."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from yellowsound.serve.job import NewJob, new_job_id
from yellowsound.serve.jobs import IdempotencyConflict, JobStore, QueueFull
from yellowsound.serve.migrations import MIGRATIONS

REQUEST: dict[str, Any] = {
    "prompt": "a", "width": 64, "height": 48, "num_frames": 9, "frame_rate": 24.0, "num_inference_steps": 4,
    "guidance_scale": 5.0, "seed": 1, "sample_audio": True, "negative_prompt": None,
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = JobStore(tmp_path / "jobs.sqlite3")
    yield store
    store.close()


def add(store: JobStore, model: str = "k6", owner: str = "", **options: Any) -> str:
    new = NewJob(id=new_job_id(), owner=owner, model=model, recipe="exact", request=REQUEST)
    return store.submit(new, **{"queue_limit": 1000, **options})[0].id


def test_claims_in_order_and_never_twice(store: JobStore) -> None:
    ids = [add(store) for _ in range(200)]
    taken: list[str] = []

    def work(name: str) -> None:
        while (job := store.claim(name, 60)) is not None:
            taken.append(job.id)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(ids) and len(taken) == 200


def test_late_words_change_nothing(store: JobStore) -> None:
    job_id = add(store)
    first = store.claim("w", 60)
    assert first is not None and store.requeue(job_id, 1, "worker_crashed", "lost", attempts=2)
    second = store.claim("w", 60)
    assert second is not None and second.attempt == 2
    assert not store.advance(job_id, 1, "progress", {"progress": 90})
    assert not store.finish(job_id, 1, {}, "kind", 1.0)
    assert not store.fail(job_id, "internal_error", "late", 1)
    assert store.finish(job_id, 2, {}, "kind", 1.0)
    assert not store.finish(job_id, 2, {}, "kind", 1.0)


def test_progress_never_goes_back(store: JobStore) -> None:
    job_id = add(store)
    store.claim("w", 60)
    for value in (10, 50, 30):
        store.advance(job_id, 1, "progress", {"progress": value})
    job = store.get(job_id)
    assert job is not None and job.progress == 50
    assert [event["data"]["progress"] for event in store.events_after(0, job_id)][-1] == 50


def test_lost_run_waits_again_once_then_fails_with_the_reason(store: JobStore) -> None:
    other, job_id = add(store), None
    store.claim("w", 60)
    job_id = add(store)
    add(store)
    claimed = store.claim("w", 60)
    assert claimed is not None and claimed.id == job_id and other != job_id
    store.requeue(job_id, 1, "server_restarted", "The server ended.", attempts=2)
    again = store.claim("w", 60)
    assert again is not None and again.id == job_id, "it keeps its place"
    assert any("attempt 1" in warning for warning in again.warnings)
    assert not store.requeue(job_id, 2, "server_restarted", "The server ended.", attempts=2)
    failed = store.get(job_id)
    assert failed is not None and (failed.status, failed.error_code) == ("failed", "server_restarted")


def test_refunded_run_does_not_count(store: JobStore) -> None:
    job_id = add(store)
    for _ in range(5):
        store.claim("w", 60)
        assert store.requeue(job_id, 1, "server_restarted", "stopped", attempts=0, refund=True)


def test_cancelled_run_cannot_complete(store: JobStore) -> None:
    job_id = add(store)
    store.claim("w", 60)
    store.cancel(job_id)
    assert not store.finish(job_id, 1, {}, "kind", 1.0)
    job = store.get(job_id)
    assert job is not None and job.error_code == "cancelled"


def test_limits_of_the_queue(store: JobStore) -> None:
    add(store, owner="a", owner_limit=1)
    with pytest.raises(QueueFull) as full:
        add(store, owner="a", owner_limit=1)
    assert full.value.scope == "key"
    with pytest.raises(QueueFull) as full:
        add(store, owner="b", queue_limit=1)
    assert full.value.scope == "queue" and len(store.queued()) == 1


def test_idempotency_keys(store: JobStore) -> None:
    first = add(store, idempotency=("k", "hash"))
    assert add(store, idempotency=("k", "hash")) == first and len(store.queued()) == 1
    with pytest.raises(IdempotencyConflict):
        add(store, idempotency=("k", "other"))
    assert add(store, owner="x", idempotency=("k", "other")) != first
    store.forget(time.time() + 1)
    assert add(store, idempotency=("k", "other")) != first


def test_retention_leaves_tombstones(store: JobStore) -> None:
    store.retention_seconds = 0.01
    job_id = add(store)
    store.cancel(job_id)
    time.sleep(0.02)
    assert store.due() == [job_id] and store.delete(job_id, "expired")
    assert store.get(job_id) is None and store.tombstone(job_id) == "expired"
    store.forget(time.time() + 1)
    assert store.tombstone(job_id) is None and store.events_after(0) == []


def test_group_by_model(store: JobStore) -> None:
    first, second, third = add(store, "a"), add(store, "b"), add(store, "a")
    claimed = [store.claim("w", 60, prefer) for prefer in (("b", "exact"), ("b", "exact"), ("a", "exact"))]
    assert [job.id for job in claimed if job] == [second, first, third]


def test_paused_queue_hands_out_nothing(store: JobStore) -> None:
    add(store)
    store.pause(True)
    assert store.claim("w", 60) is None
    store.pause(False)
    assert store.claim("w", 60) is not None


def test_lease_that_ended_is_found(store: JobStore) -> None:
    job_id = add(store)
    store.claim("w", 0.0)
    time.sleep(0.01)
    assert [job.id for job in store.lost(everything=False)] == [job_id]
    assert store.renew(job_id, 1, 60) and store.lost(everything=False) == []
    assert [job.id for job in store.lost(everything=True)] == [job_id]


def test_timings_are_kept_in_small_number(store: JobStore) -> None:
    for number in range(30):
        add(store)
        job = store.claim("w", 60)
        assert job is not None
        store.finish(job.id, 1, {}, "kind", float(number))
    assert [seconds for _, seconds in store.timings()] == [float(n) for n in range(10, 30)]


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite3"
    JobStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(RuntimeError, match="update it"):
        JobStore(path)


def test_everything_is_there_after_reopening(store: JobStore, tmp_path: Path) -> None:
    job_id = add(store)
    other = JobStore(tmp_path / "jobs.sqlite3")
    found = other.get(job_id)
    other.close()
    assert found is not None and found.request == REQUEST and found.status == "queued"
