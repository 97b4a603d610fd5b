"""Files of jobs over HTTP: the clip, its thumbnail and last frame, and the preview strip."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from yellowsound.serve import schema
from yellowsound.serve.content import FileAnswer
from yellowsound.serve.errors import ApiError
from yellowsound.serve.job import Job
from yellowsound.serve.routes.videos import Here, find_job
from yellowsound.serve.service import Service

router = APIRouter(tags=["videos"], responses=schema.ERRORS)
_VARIANTS = {
    "video": ("clip", "video/mp4", ".mp4"),
    "thumbnail": ("first_frame", "image/webp", ".webp"),
    "last_frame": ("last_frame", "image/png", ".png"),
}
_FILES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"video/mp4": {}}},
    206: {"description": "The asked range"},
    304: {"description": "Known"},
}


@router.head("/v1/videos/{video_id}/content", include_in_schema=False)
@router.get("/v1/videos/{video_id}/content", response_class=Response, responses=_FILES)
def read_content(
    video_id: str,
    request: Request,
    service: Here,
    variant: Annotated[str, Query(max_length=40)] = "video",
    download: Annotated[bool, Query()] = False,
) -> Response:
    """The MP4 (``variant=video``), its first frame (``thumbnail``, WebP) or its last (``last_frame``, PNG)."""
    job = find_job(service, video_id, request)
    if variant not in _VARIANTS:
        raise ApiError(400, "invalid_value", f"variant={variant}: one of {', '.join(_VARIANTS)}", "variant")
    _check_completed(service, job)
    kind, media_type, ending = _VARIANTS[variant]
    place = "attachment" if download else "inline"
    headers = {
        "Content-Disposition": f'{place}; filename="{job.id}{ending}"',
        "Cache-Control": "private, max-age=3600",
    }
    tag = f"{str(job.facts['sha256'])[:32]}-{variant}"
    try:
        return FileAnswer(
            service.files.path(kind, job.id),
            request.headers,
            method=request.method,
            media_type=media_type,
            tag=tag,
            headers=headers,
        )
    except FileNotFoundError:
        raise ApiError(404, "video_not_found", "The file of this video is gone.", "video_id") from None


@router.head("/v1/videos/{video_id}/preview", include_in_schema=False)
@router.get("/v1/videos/{video_id}/preview", response_class=Response, responses={200: {"content": {"image/webp": {}}}})
def read_preview(video_id: str, request: Request, service: Here) -> Response:
    """The newest preview strip (WebP, several frames side by side); kept also after a cancel."""
    job = find_job(service, video_id, request)
    path = service.files.path("preview", job.id)
    try:
        stamp = path.stat().st_mtime_ns
        return FileAnswer(
            path,
            request.headers,
            method=request.method,
            media_type="image/webp",
            tag=f"preview-{stamp:x}",
            headers={"Cache-Control": "no-cache"},
        )
    except FileNotFoundError:
        message = "There is no preview yet; the first comes with step two."
        raise ApiError(404, "video_not_ready", message, "video_id", {"Retry-After": "2"}) from None


def _check_completed(service: Service, job: Job) -> None:
    if job.status == "failed":
        raise ApiError(
            422, "generation_failed", f"This video failed: {job.error_code}: {job.error_message}", "video_id"
        )
    if job.status != "completed":
        after = str(max(1, service.settings.poll_after_ms // 1000))
        message = f"This video is {job.status} at {job.progress} %; ask again when its status is completed."
        raise ApiError(404, "video_not_ready", message, "video_id", {"Retry-After": after})
