"""RunDesk: what the stations of a run mean for the store, the files and the figures.

The order that makes crashes harmless: a clip is synced and named before its record is completed; a record is removed
before its files; whatever is left over is swept at the next start.
"""

from __future__ import annotations

import contextlib
import time

from yellowsound.serve.files import JobFiles
from yellowsound.serve.job import Job
from yellowsound.serve.jobs import JobStore
from yellowsound.serve.logging import logger
from yellowsound.serve.metrics import Metrics
from yellowsound.serve.progress import History, progress_of
from yellowsound.serve.served import ServedModels
from yellowsound.serve.settings import Settings
from yellowsound.serve.worker_protocol import EncodeAhead, Failed, Finished, Run, Told, WorkerLink

LEASE_SECONDS = 120.0
_RENEW_SECONDS = 10.0


class RunDesk:
    """Bookkeeping of runs. Called from slot threads."""

    def __init__(
        self,
        settings: Settings,
        store: JobStore,
        files: JobFiles,
        models: ServedModels,
        history: History,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self._store, self._files, self._models = store, files, models
        self._history, self._metrics = history, metrics
        self._renewed: dict[str, float] = {}

    def first_model(self) -> tuple[str, str]:
        """What a fresh worker loads before it is asked: (source, recipe)."""
        return self._models.default.source, self.settings.recipes[0]

    def claim(self, worker: str, prefer: tuple[str, str] | None) -> Job | None:
        job = self._store.claim(worker, LEASE_SECONDS, prefer)
        if job is not None:
            waited = time.time() - job.created_at
            logger(job_id=job.id).info("started", worker=worker, attempt=job.attempt, waited_seconds=round(waited, 3))
            self._metrics.waited(job.model, waited)
        return job

    def command(self, job: Job) -> Run | None:
        """The worker's command for a claimed job; None when it cannot be given (the job then failed)."""
        model = self._models.find(job.model)
        picture = self._files.picture(job.id)
        if model is None:
            self._fail(job, "internal_error", f"model {job.model} is no longer served here")
            return None
        try:
            image = picture.read_bytes() if job.request.get("has_image") else None
            out = str(self._files.draft(job.id, job.attempt)) if self.settings.shared_folder else None
        except OSError as error:
            what = "uploaded picture" if error.filename == str(picture) else "folder for the clip"
            self._fail(job, "storage_error", f"The {what} cannot be used: {error.strerror or 'disk error'}.")
            return None
        request = {name: value for name, value in job.request.items() if name != "has_image"}
        return Run(
            job_id=job.id, attempt=job.attempt, source=model.source, recipe=job.recipe, request=request, image=image,
            out=out,
        )  # fmt: skip

    def told(self, job: Job, message: Told) -> None:
        """Note an engine event; a preview's picture replaces the one before."""
        event = message.event
        if message.strip is not None:
            with contextlib.suppress(OSError):  # a full disk must not end a job for want of a preview
                self._files.write(self._files.path("preview", job.id), message.strip, durable=False)
                data = {"previews": event["frames"], "preview_step": event["step"]}
                self._store.advance(job.id, job.attempt, "preview", data)
            return
        change = progress_of(event)
        if change is not None:
            self._store.advance(job.id, job.attempt, "warning" if "warning" in change else "progress", change)

    def renew(self, job: Job) -> None:
        """Prolong the lease, seldom enough to cost nothing."""
        now = time.monotonic()
        if now - self._renewed.get(job.id, 0.0) > _RENEW_SECONDS:
            self._renewed = {job.id: now} | {k: v for k, v in self._renewed.items() if now - v < LEASE_SECONDS}
            self._store.renew(job.id, job.attempt, LEASE_SECONDS)

    def look_ahead(self, job: Job, link: WorkerLink) -> None:
        """Offer the prompt of the job that is likely next on this worker."""
        for following in self._store.queued(limit=self.settings.limits.queue_per_key):
            model = self._models.find(following.model)
            if (following.model, following.recipe) == (job.model, job.recipe) and model is not None:
                prompts = (following.request["prompt"],)
                link.send(EncodeAhead(source=model.source, recipe=following.recipe, prompts=prompts))
                return

    def finished(self, job: Job, message: Finished) -> None:
        """Name the files, then complete the record; a clip nobody wants any more is removed."""
        try:
            self._keep(job, message)
        except OSError as error:
            self._fail(job, "storage_error", f"The clip could not be stored: {error.strerror or 'disk error'}.")
            self._files.remove_drafts(job.id)
            return
        facts = message.facts
        seconds = time.time() - (job.started_at or time.time())
        if not self._store.finish(job.id, job.attempt, facts, job.kind, seconds):
            self._discard(job)
            return
        self._history.add(job.kind, seconds)
        self._metrics.completed(job.model, facts)
        logger(job_id=job.id).info("completed", seconds=round(seconds, 3), bytes=facts["bytes"])

    def failed(self, job: Job, message: Failed) -> None:
        self._fail(job, message.code, message.message)
        self._files.remove_drafts(job.id)

    def overrun(self, job: Job, message: str) -> None:
        self._fail(job, "run_time_limit", message)

    def lost(self, job: Job, reason: str) -> None:
        """The worker is gone and the job with it: once more, then it fails."""
        message = f"The run was lost: {reason}."
        self._files.remove_drafts(job.id)  # first: where the disk is full, the record needs their room
        again = self._store.requeue(
            job.id, job.attempt, "worker_crashed", message, attempts=self.settings.limits.attempts
        )
        logger(job_id=job.id).warning("lost", reason=reason, runs_again=again)
        if not again:
            self._metrics.failed(job.model, "worker_crashed")

    def out_of_disk(self, job: Job) -> None:
        """The disk became full in mid-job: its drafts give their room back, and the job fails."""
        self._files.remove_drafts(job.id)
        self._fail(job, "storage_error", "The disk became full while the clip was made.")

    def given_up(self, job: Job) -> None:
        """The server stops in order: the job waits for the next start and the run does not count."""
        self._store.requeue(job.id, job.attempt, "server_restarted", "The server was stopped.", attempts=0, refund=True)
        self._files.remove_drafts(job.id)

    def still_wanted(self, job: Job) -> bool:
        """Whether this attempt is still what the store runs."""
        now = self._store.get(job.id)
        return now is not None and now.status == "in_progress" and now.attempt == job.attempt

    def worker_replaced(self) -> None:
        self._metrics.workers_replaced.inc()

    def _keep(self, job: Job, message: Finished) -> None:
        draft = self._files.draft(job.id, job.attempt)
        if message.clip is not None:
            self._files.write(draft, message.clip)
        self._files.write(self._files.path("first_frame", job.id), message.first_frame)
        self._files.write(self._files.path("last_frame", job.id), message.last_frame)
        self._files.adopt(draft, job.id)

    def _discard(self, job: Job) -> None:
        """The job was cancelled or deleted while its last frames were made."""
        if self._store.get(job.id) is None:
            self._files.remove(job.id)
            return
        for kind in ("clip", "first_frame", "last_frame"):
            self._files.path(kind, job.id).unlink(missing_ok=True)
        self._files.remove_drafts(job.id)

    def _fail(self, job: Job, code: str, message: str) -> None:
        if self._store.fail(job.id, code, message, job.attempt):
            self._metrics.failed(job.model, code)
            logger(job_id=job.id).warning("failed", code=code, reason=message)
