"""The job object on the wire: every field always there, types as the official client expects, no host paths."""

from __future__ import annotations

from typing import Any

from yellowsound.serve.auth import Auth
from yellowsound.serve.job import Job
from yellowsound.serve.jobs import JobStore
from yellowsound.serve.progress import History
from yellowsound.serve.settings import Settings


class Wire:
    """Turns stored jobs into JSON objects."""

    def __init__(self, settings: Settings, store: JobStore, history: History, auth: Auth) -> None:
        self._settings, self._store, self._history, self._auth = settings, store, history, auth

    def job(self, job: Job) -> dict[str, Any]:
        """The job object of ``job`` as of now."""
        request, facts = job.request, job.facts
        frames = facts.get("num_frames", request["num_frames"])
        rate = facts.get("frame_rate", request["frame_rate"])
        duration = frames / rate
        width, height = facts.get("width", request["width"]), facts.get("height", request["height"])
        failed = job.status == "failed"
        return {
            "id": job.id,
            "object": "video",
            "model": job.model,
            "status": job.status,
            "progress": job.progress if job.status != "completed" else 100,
            "created_at": int(job.created_at),
            "completed_at": _whole(job.completed_at),
            "expires_at": _whole(job.expires_at),
            "prompt": request["prompt"],
            "size": f"{width}x{height}",
            "seconds": f"{duration:.4g}",
            "remixed_from_video_id": None,
            "error": {"code": job.error_code, "message": job.error_message} if failed else None,
            "quality": "default",
            "media_type": "video/mp4",
            "file_name": f"{job.id}.mp4" if job.status == "completed" else None,
            "inference_time_s": facts.get("inference_seconds"),
            "stage_durations": facts.get("stage_seconds", {}),
            "peak_memory_mb": _megabytes(facts.get("vram_peak_bytes") or facts.get("rss_peak_bytes")),
            "fps": rate,
            "num_frames": frames,
            "duration_s": round(duration, 6),
            **self._ours(job),
        }

    def _ours(self, job: Job) -> dict[str, Any]:
        request, facts = job.request, job.facts
        ahead = self._store.ahead(job) if job.status == "queued" else {}
        return {
            "seed": request["seed"],
            "num_inference_steps": request["num_inference_steps"],
            "guidance_scale": request["guidance_scale"],
            "negative_prompt": request["negative_prompt"],
            "recipe": job.recipe,
            "has_image": bool(request.get("has_image")),
            "has_audio": facts.get("has_audio", request["sample_audio"]),
            "queue_position": sum(ahead.values()) + 1 if job.status == "queued" else None,
            "stage": job.stage,
            "step": job.step,
            "total_steps": job.steps,
            "eta_s": self._eta(job, ahead),
            "expected_s": self._history.expected_seconds(job.kind),
            "started_at": job.started_at,
            "attempt": job.attempt,
            "bytes": facts.get("bytes"),
            **self._links(job),
            "warnings": job.warnings,
        }

    def _links(self, job: Job) -> dict[str, str | None]:
        base = f"{self._settings.public_url.rstrip('/')}/v1/videos/{job.id}"
        query = self._auth.signed_query(job.id)
        done = job.status == "completed"
        return {
            "content_url": f"{base}/content?{query}" if job.status != "failed" else None,
            "thumbnail_url": f"{base}/content?variant=thumbnail&{query}" if done else None,
            "last_frame_url": f"{base}/content?variant=last_frame&{query}" if done else None,
            "preview_url": f"{base}/preview?{query}" if job.previews else None,
        }

    def _eta(self, job: Job, ahead: dict[str, int]) -> float | None:
        if job.status == "in_progress":
            seconds = self._history.remaining_seconds(job)
        elif job.status == "queued":
            seconds = self._queued_eta(job, ahead)
        else:
            return None
        return None if seconds is None else round(seconds, 1)

    def _queued_eta(self, job: Job, ahead: dict[str, int]) -> float | None:
        own = self._history.expected_seconds(job.kind)
        if own is None:
            return None
        wait = self._history.waiting_seconds(ahead, self._store.running(), self._settings.workers)
        return None if wait is None else wait + own


def _whole(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


def _megabytes(size_bytes: int | None) -> float | None:
    return None if not size_bytes else round(size_bytes / 1e6, 1)
