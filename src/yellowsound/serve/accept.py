"""Accepting a job: everything between a read body and a stored record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yellowsound.serve.errors import NO_RETRY, ApiError
from yellowsound.serve.job import Job, NewJob, new_job_id
from yellowsound.serve.jobs import IdempotencyConflict, QueueFull
from yellowsound.serve.logging import logger
from yellowsound.serve.references import check_picture, picture_bytes
from yellowsound.serve.service import Service
from yellowsound.serve.settings import MEBIBYTE
from yellowsound.serve.submission import Submission, body_hash, read_submission, request_fields

MAX_KEY_CHARACTERS = 255
RETRY_SECONDS = 30


def accept(service: Service, raw: Mapping[str, Any], owner: str, key: str | None) -> Job:
    """Validate, store and announce a job; with an idempotency key at most once. Blocks on disk and pictures.

    Raises ApiError, RequestError; nothing is left behind then.
    """
    digest = None if key is None else body_hash(raw)
    known = _known(service, owner, key, digest)
    if known is not None:
        return known
    submission = read_submission(raw, service.models, service.settings)
    service.admission.check(submission.model, submission.request, submission.picture is not None)
    _check_ready(service)
    job_id = new_job_id()
    warnings = [*submission.warnings, *_keep_picture(service, submission, job_id)]
    try:
        job, is_new = _store(service, submission, job_id, owner, warnings, key, digest)
    except BaseException:
        service.files.picture(job_id).unlink(missing_ok=True)
        raise
    if not is_new:
        service.files.picture(job_id).unlink(missing_ok=True)
    logger(job_id=job.id).info("accepted", model=job.model, is_new=is_new)
    return job


def _known(service: Service, owner: str, key: str | None, digest: str | None) -> Job | None:
    if key is None or digest is None:
        return None
    if not (0 < len(key) <= MAX_KEY_CHARACTERS):
        raise ApiError(
            400, "invalid_value", f"Idempotency-Key: 1 to {MAX_KEY_CHARACTERS} characters", "Idempotency-Key"
        )
    try:
        return service.store.replay(owner, key, digest)
    except IdempotencyConflict:
        raise _conflict() from None


def _conflict() -> ApiError:
    message = "Idempotency-Key: this key was used for another request within the last day"
    return ApiError(409, "idempotency_conflict", message, "Idempotency-Key", NO_RETRY)


def _check_ready(service: Service) -> None:
    if service.is_stopping or service.broadcast.stopping:
        raise ApiError(503, "shutting_down", "The server is stopping.", headers={"Retry-After": "10"})
    if service.dispatcher.is_hopeless:
        raise ApiError(
            503, "not_ready", "No worker can be started; see the server's log.", headers={"Retry-After": "60"}
        )
    floor, free = service.settings.disk_floor_bytes, service.files.free_bytes()
    if free < floor:
        message = f"{free // MEBIBYTE} MiB are free on the disk, new jobs need {floor // MEBIBYTE} MiB"
        raise ApiError(507, "insufficient_storage", message, headers=NO_RETRY)


def _keep_picture(service: Service, submission: Submission, job_id: str) -> list[str]:
    if submission.picture is None:
        return []
    data = picture_bytes(submission.picture, service.settings)
    warnings = check_picture(data, service.settings)
    try:
        service.files.write(service.files.picture(job_id), data)
    except OSError:
        raise ApiError(507, "insufficient_storage", "The picture could not be stored.", headers=NO_RETRY) from None
    return warnings


def _store(
    service: Service,
    submission: Submission,
    job_id: str,
    owner: str,
    warnings: list[str],
    key: str | None,
    digest: str | None,
) -> tuple[Job, bool]:
    settings = service.settings
    fields = request_fields(submission.request)
    new = NewJob(
        id=job_id,
        owner=owner,
        model=submission.model.name,
        recipe=submission.recipe,
        request={**fields, "has_image": submission.picture is not None},
        warnings=tuple(warnings),
    )
    try:
        return service.store.submit(
            new,
            queue_limit=settings.limits.queue,
            owner_limit=settings.limits.queue_per_key if settings.api_keys else None,
            idempotency=None if key is None or digest is None else (key, digest),
        )
    except IdempotencyConflict:
        raise _conflict() from None
    except QueueFull as full:
        whose = "The queue holds" if full.scope == "queue" else "This key has"
        message = f"{whose} {full.limit} waiting jobs, the limit; try again when some are done."
        raise ApiError(429, "queue_full", message, headers={"Retry-After": str(RETRY_SECONDS)}) from None
