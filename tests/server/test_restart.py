"""Restarts, retention and disks: what survives, what is swept, what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from yellowsound.serve.service import DataDirTaken


def test_orderly_restart_keeps_everything(start_server: Any, png: bytes) -> None:
    """R25: one done, one running, two waiting (one with a picture), one key; all there afterwards."""
    api = start_server()
    done = api.run("done")
    running = api.create("[step=0.5]", num_inference_steps=6)["id"]
    api.wait(running, "in_progress")
    waiting = api.create("a")["id"]
    pictured = api.post("/v1/videos", data={"prompt": "p"}, files={"input_reference": ("a.png", png)}).json()["id"]
    key = {"Idempotency-Key": "over-the-restart"}
    keyed = api.post("/v1/videos", json={"prompt": "k"}, headers=key).json()["id"]
    api.stop()
    again = start_server()
    assert again.job(done["id"]) == done
    assert again.get(done["content_url"]).status_code == 200
    assert again.post("/v1/videos", json={"prompt": "k"}, headers=key).json()["id"] == keyed
    jobs = [again.wait(job_id) for job_id in (running, waiting, pictured, keyed)]
    assert [job["status"] for job in jobs] == ["completed"] * 4
    assert jobs[0]["attempt"] == 1, "a run that the server itself ended does not count"
    starts = [job["started_at"] for job in jobs]
    assert starts == sorted(starts)


def test_paused_queue_stays_paused(start_server: Any) -> None:
    api = start_server()
    api.post("/v1/queue/pause")
    api.stop()
    assert start_server().get("/v1/queue").json()["paused"] is True


def test_expired_video_is_gone_everywhere_at_once(start_server: Any) -> None:
    """R04: job, list and content agree after the retention time."""
    api = start_server(retention_seconds=0.5, sweep_seconds=0.1)
    job = api.run()
    end = time.monotonic() + 10
    while api.get(f"/v1/videos/{job['id']}").status_code == 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    for tail in ("", "/content"):
        answer = api.get(f"/v1/videos/{job['id']}{tail}")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "video_expired"
    assert api.count() == 0 and not list(api.service.files.root.rglob(f"*{job['id']}*"))


def test_deleted_video_is_not_called_expired(start_server: Any) -> None:
    api = start_server()
    job = api.run()
    api.delete(f"/v1/videos/{job['id']}")
    assert api.get(f"/v1/videos/{job['id']}").json()["error"]["code"] == "video_not_found"


def test_left_over_files_are_swept_and_a_lost_clip_is_said(start_server: Any, tmp_path: Path) -> None:
    api = start_server()
    kept, lost = api.run("a"), api.run("b")
    root = api.service.files.root
    api.stop()
    (root / "videos" / f"{lost['id']}.mp4").unlink()
    orphan = "video_" + "a" * 32
    strangers = [root / "videos" / f"{orphan}.mp4", root / "pictures" / orphan, root / "work" / "x.part"]
    for path in strangers:
        path.write_bytes(b"x")
    own = root / "videos" / "my own notes.txt"
    own.write_text("not yours")
    again = start_server()
    assert not any(path.exists() for path in strangers) and own.exists()
    assert again.job(kept["id"])["status"] == "completed"
    assert again.job(lost["id"])["error"]["code"] == "storage_error"


def test_second_server_on_one_folder_is_refused(start_server: Any) -> None:
    start_server()
    with pytest.raises(DataDirTaken, match="data-dir"):
        start_server()


def test_disk_floor_is_507(start_server: Any) -> None:
    api = start_server(disk_floor_bytes=1 << 60)
    answer = api.send_form(prompt="a")
    assert answer.status_code == 507 and answer.json()["error"]["code"] == "insufficient_storage"
    assert answer.headers["x-should-retry"] == "false" and api.count() == 0


def test_disk_full_fails_that_job_only(start_server: Any, tmp_path: Path) -> None:
    """T-F6 on a real file system of 1 MB where mounting is allowed."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]).returncode:
        pytest.skip("mounting a small tmpfs needs root; the same fault without a mount is test_job_life's [full]")
    try:
        data = tmp_path / "data"
        api = start_server(data_dir=data)
        work = api.service.files.work
        shutil.rmtree(work)
        work.symlink_to(folder)
        (folder / "ballast").write_bytes(b"\0" * (1_000_000 - 30_000))
        job = api.wait(api.create("a", num_frames=121, size="256x256")["id"])
        assert (job["status"], job["error"]["code"]) == ("failed", "storage_error")
        assert api.get(f"/v1/videos/{job['id']}/content").status_code == 422
        assert not list(data.glob("videos/*.mp4")) and [path.name for path in folder.iterdir()] == ["ballast"]
        assert api.get("/health").status_code == 200
        api.stop()
    finally:
        subprocess.run(["umount", folder], check=True)
