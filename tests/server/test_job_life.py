"""The life of a job as a client sees it: states, order, cancel, delete, failures, waiting answers."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import av
import httpx2
import pytest

ORDER = ["queued", "in_progress", "completed"]


def test_only_the_four_words_in_legal_order(api: Any) -> None:
    job_id = api.create("[step=0.1]")["id"]
    seen = [(job := api.job(job_id))["status"]]
    progress = [job["progress"]]
    while seen[-1] not in ("completed", "failed"):
        job = api.job(job_id)
        seen.append(job["status"])
        progress.append(job["progress"])
        assert (job["progress"] == 100) == (job["status"] == "completed")
    assert sorted(seen, key=ORDER.index) == seen and seen[-1] == "completed"
    assert progress == sorted(progress) and len(set(progress)) > 5


def test_waiting_jobs_are_queued_with_positions(api: Any) -> None:
    first, second, third = (api.create("[step=0.3]")["id"] for _ in range(3))
    api.wait(first, "in_progress")
    assert [api.job(job)["status"] for job in (second, third)] == ["queued", "queued"]
    assert [api.job(job)["queue_position"] for job in (second, third)] == [1, 2]
    assert api.job(first)["queue_position"] is None


def test_polling_pace_is_offered_while_it_lives(api: Any) -> None:
    job = api.create()
    assert api.get(f"/v1/videos/{job['id']}").headers["openai-poll-after-ms"] == "50"
    api.wait(job["id"])
    assert "openai-poll-after-ms" not in api.get(f"/v1/videos/{job['id']}").headers


def test_completed_job_is_whole(api: Any) -> None:
    """The file has the frames, size, length and sound that the job says it has."""
    job = api.run("a cat", num_frames=13, seed=3)
    content = api.get(job["content_url"])
    assert content.status_code == 200 and len(content.content) == job["bytes"]
    with av.open(io.BytesIO(content.content)) as clip:
        stream = clip.streams.video[0]
        assert sum(1 for _ in clip.decode(stream)) == job["num_frames"] == 13
        assert f"{stream.width}x{stream.height}" == job["size"]
        assert len(clip.streams.audio) == 1 and job["has_audio"]
        assert clip.duration / 1e6 == pytest.approx(job["duration_s"], abs=0.001)
    assert job["error"] is None and job["file_name"] and job["expires_at"] > job["completed_at"] >= job["created_at"]
    assert set(job["stage_durations"]) >= {"text", "denoise", "decode"} and job["inference_time_s"] > 0
    assert content.content[4:8] == b"ftyp" and content.content.index(b"moov") < content.content.index(b"mdat")


def test_silent_clip_has_no_track(api: Any) -> None:
    job = api.run(extra_params='{"sample_audio": false}')
    with av.open(io.BytesIO(api.get(job["content_url"]).content)) as clip:
        assert not clip.streams.audio and not job["has_audio"]


def test_completed_is_always_followed_by_content(api: Any) -> None:
    for _ in range(10):
        job_id = api.create("[step=0]", num_frames=1)["id"]
        while api.job(job_id)["status"] != "completed":
            pass
        assert api.get(f"/v1/videos/{job_id}/content").status_code == 200


@pytest.mark.parametrize(("prompt", "code"), [("[nan]", "internal_error"), ("[full]", "storage_error")])
def test_failed_job_says_why_and_the_next_runs(api: Any, prompt: str, code: str) -> None:
    job = api.wait(api.create(prompt)["id"])
    assert job["status"] == "failed" and job["error"]["code"] == code and job["error"]["message"]
    assert "/made/up" not in job["error"]["message"] and job["content_url"] is None
    content = api.get(f"/v1/videos/{job['id']}/content")
    assert content.status_code == 422 and content.json()["error"]["code"] == "generation_failed"
    assert api.run()["status"] == "completed"
    assert not list(api.service.files.work.iterdir())


def test_cancel_keeps_the_record_and_its_preview(api: Any) -> None:
    job_id = api.create("[step=0.2]", num_inference_steps=50)["id"]
    api.until(job_id, lambda job: job["preview_url"])
    answer = api.post(f"/v1/videos/{job_id}/cancel")
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["error"]["code"]) == ("failed", "cancelled")
    assert api.post(f"/v1/videos/{job_id}/cancel").json()["error"]["code"] == "cancelled"
    preview = api.get(f"/v1/videos/{job_id}/preview")
    assert preview.status_code == 200 and preview.content[8:12] == b"WEBP"
    assert api.get(f"/v1/videos/{job_id}/content").status_code == 422


def test_cancel_of_an_ended_job_changes_nothing(api: Any) -> None:
    job = api.run()
    assert api.post(f"/v1/videos/{job['id']}/cancel").json()["status"] == "completed"


@pytest.mark.parametrize("ending", ["delete", "cancel"])
def test_running_job_makes_room_at_once(api: Any, ending: str) -> None:
    """T-F1: A stops in mid-step, B starts within two seconds and is what B alone would be."""
    alone = api.run("b", seed=5)
    first = api.create("[step=0.5]", num_inference_steps=30)["id"]
    second = api.create("b", seed=5)["id"]
    api.until(first, lambda job: job["step"] == 2)
    began = time.monotonic()
    answer = api.delete(f"/v1/videos/{first}") if ending == "delete" else api.post(f"/v1/videos/{first}/cancel")
    assert answer.status_code == 200 and time.monotonic() - began < 1
    api.wait(second, "in_progress", "completed", seconds=2)
    job = api.wait(second)
    frames = [api.get(f"/v1/videos/{j['id']}/content?variant=last_frame").content for j in (alone, job)]
    assert frames[0] == frames[1]
    if ending == "delete":
        assert api.get(f"/v1/videos/{first}").status_code == 404
        assert api.get(f"/v1/videos/{first}/content").status_code == 404
        assert api.delete(f"/v1/videos/{first}").status_code == 404
    assert not [path for path in api.service.files.root.rglob(f"*{first}*.mp4")]


def test_delete_while_decoding(api: Any) -> None:
    job_id = api.create("[step=0.05][slow decode]", num_frames=97)["id"]
    api.until(job_id, lambda job: job["stage"] == "decode")
    assert api.delete(f"/v1/videos/{job_id}").json() == {"id": job_id, "object": "video.deleted", "deleted": True}
    assert api.run()["status"] == "completed"
    assert not list(api.service.files.root.rglob(f"*{job_id}*"))


def test_delete_while_queued_never_starts(api: Any) -> None:
    first = api.create("[step=0.2]")["id"]
    second = api.create()["id"]
    assert api.delete(f"/v1/videos/{second}").status_code == 200
    api.wait(first)
    assert api.get(f"/v1/videos/{second}").status_code == 404
    assert not [job for job in api.get("/v1/queue").json()["running"]]


def test_list_pages_in_both_orders(api: Any) -> None:
    made = [api.create()["id"] for _ in range(5)]
    for order in ("asc", "desc"):
        seen: list[str] = []
        after = None
        while True:
            params = {"limit": 2, "order": order} | ({"after": after} if after else {})
            page = api.get("/v1/videos", params=params).json()
            assert page["object"] == "list" and page["first_id"] == page["data"][0]["id"]
            seen += [job["id"] for job in page["data"]]
            after = page["last_id"]
            if not page["has_more"]:
                break
        assert len(seen) == len(set(seen))
        ours = [job for job in seen if job in made]
        assert ours == (made if order == "asc" else made[::-1])


def test_list_limits(api: Any) -> None:
    api.create()
    page = api.get("/v1/videos", params={"limit": 0}).json()
    assert page["data"] == [] and page["has_more"] is True and page["last_id"] is None
    assert api.get("/v1/videos", params={"after": "video_unknown"}).json()["data"] == []
    for bad in ({"limit": 101}, {"limit": -1}, {"limit": "x"}, {"order": "up"}):
        answer = api.get("/v1/videos", params=bad)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(bad))


@pytest.mark.parametrize("job_id", ["nope", "video_" + "0" * 32, "%2e%2e%2fjobs.sqlite3", "a%2Fb", "video_x%00"])
def test_unknown_id_is_404_with_the_envelope(api: Any, job_id: str) -> None:
    for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "/cancel"), ("GET", "/events")):
        answer = api.request(method, f"/v1/videos/{job_id}{tail}")
        assert answer.status_code in (404, 405), (method, tail, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_not_ready_content_is_404_with_a_reason(api: Any) -> None:
    job_id = api.create("[step=0.3]")["id"]
    answer = api.get(f"/v1/videos/{job_id}/content")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "video_not_ready"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("tail", ["edits", "extensions", "characters", "{id}/remix"])
def test_what_is_not_offered_is_501_without_retry(api: Any, tail: str) -> None:
    answer = api.post(f"/v1/videos/{tail}", json={"prompt": "a"})
    assert answer.status_code == 501 and answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "unsupported_operation"


def test_method_not_allowed_names_the_allowed(api: Any) -> None:
    answer = api.put("/v1/videos", json={})
    assert answer.status_code == 405 and set(answer.headers["allow"].split(", ")) == {"GET", "POST"}
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_trailing_slash_is_served_not_redirected(api: Any) -> None:
    answer = api.post("/v1/videos/", files={"prompt": (None, "a")}, follow_redirects=False)
    assert answer.status_code == 200


def test_sync_answers_with_the_clip(api: Any) -> None:
    answer = api.post("/v1/videos/sync", files={"prompt": (None, "a"), "num_frames": (None, "5")})
    assert answer.status_code == 200 and answer.headers["content-type"] == "video/mp4"
    assert answer.content[4:8] == b"ftyp"
    for name in ("x-request-id", "x-model", "x-inference-time-s", "x-stage-durations", "x-peak-memory-mb"):
        assert answer.headers[name]
    failed = api.post("/v1/videos/sync", json={"prompt": "[nan]"})
    assert failed.status_code == 500 and failed.json()["error"]["code"] == "internal_error"
    assert failed.headers["x-should-retry"] == "false"


def test_sync_client_that_leaves_cancels_the_job(api: Any) -> None:
    with httpx2.Client(base_url=api.base_url, timeout=1.0) as impatient, pytest.raises(httpx2.ReadTimeout):
        impatient.post("/v1/videos/sync", json={"prompt": "[step=1] leaves", "num_inference_steps": 60})
    began = time.monotonic()
    assert api.get("/health").status_code == 200 and time.monotonic() - began < 1
    job = api.get("/v1/videos", params={"limit": 1}).json()["data"][0]
    assert api.wait(job["id"], "failed", seconds=5)["error"]["code"] == "cancelled"
    assert api.run()["status"] == "completed"


def test_sync_timeout_cancels(start_server: Any) -> None:
    api = start_server(limits={"sync_seconds": 1})
    answer = api.post("/v1/videos/sync", json={"prompt": "[step=1]", "num_inference_steps": 60})
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "sync_timeout"
    assert api.get("/v1/videos").json()["data"][0]["error"]["code"] == "cancelled"


def test_idempotency_key(api: Any) -> None:
    key = {"Idempotency-Key": f"k-{time.time_ns()}"}
    first = api.post("/v1/videos", json={"prompt": "a"}, headers=key)
    again = api.post("/v1/videos", json={"prompt": "a"}, headers=key)
    form = api.post("/v1/videos", files={"prompt": (None, "a")}, headers=key)
    assert first.json()["id"] == again.json()["id"] == form.json()["id"]
    other = api.post("/v1/videos", json={"prompt": "b"}, headers=key)
    assert other.status_code == 409 and other.json()["error"]["code"] == "idempotency_conflict"
    assert other.headers["x-should-retry"] == "false"
    assert api.post("/v1/videos", json={"prompt": "a"}, headers={"Idempotency-Key": "x" * 300}).status_code == 400


def test_idempotency_key_under_simultaneous_retries(api: Any) -> None:
    key, ids = {"Idempotency-Key": f"r-{time.time_ns()}"}, set()

    def create() -> None:
        ids.add(api.post("/v1/videos", json={"prompt": "a"}, headers=key).json()["id"])

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 1


def test_full_queue_is_429(start_server: Any) -> None:
    api = start_server(limits={"queue": 2})
    api.post("/v1/queue/pause")
    api.create(), api.create()
    answer = api.send_form(prompt="a")
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "queue_full"
    assert answer.json()["error"]["type"] == "rate_limit_error" and 0 < int(answer.headers["retry-after"]) <= 120


def test_pause_move_resume(start_server: Any) -> None:
    api = start_server()
    assert api.post("/v1/queue/pause").json()["paused"] is True
    first, second, third = (api.create()["id"] for _ in range(3))
    time.sleep(0.3)
    assert api.job(first)["status"] == "queued"
    queue = api.post(f"/v1/queue/{third}/move", json={"to": 0}).json()
    assert [job["id"] for job in queue["queued"]] == [third, first, second]
    assert [job["queue_position"] for job in queue["queued"]] == [1, 2, 3]
    assert api.post("/v1/queue/resume").json()["paused"] is False
    ends = [api.wait(job_id)["started_at"] for job_id in (third, first, second)]
    assert ends == sorted(ends)
    moved = api.post(f"/v1/queue/{third}/move", json={"to": 0})
    assert moved.status_code == 409 and moved.json()["error"]["code"] == "not_queued"


def test_estimate_comes_from_history(start_server: Any) -> None:
    api = start_server()
    assert api.create()["expected_s"] is None
    api.run()
    job = api.create("[step=0.3]")
    assert job["expected_s"] > 0 and (job["eta_s"] is None or job["eta_s"] > 0)
    api.wait(job["id"])
    assert api.job(job["id"])["eta_s"] is None


def test_jobs_are_grouped_by_model_within_fairness(start_server: Any) -> None:
    api = start_server(checkpoints=("fake:a", "fake:b"), fair_runs=3)
    api.post("/v1/queue/pause")
    models = ["a", "b", "a", "a", "b", "a", "a"]
    ids = {api.create("[step=0]", model=model)["id"]: model for model in models}
    api.post("/v1/queue/resume")
    jobs = sorted((api.wait(job_id) for job_id in ids), key=lambda job: job["started_at"])
    assert "".join(ids[job["id"]] for job in jobs) == "aaabbaa"
