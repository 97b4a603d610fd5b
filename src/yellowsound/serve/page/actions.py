"""What the page's buttons do: create, again, cancel, delete, move up, pause, resume.

Each works as a plain form too: without htmx the answer leads back to the page the button was on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from yellowsound.request import RequestError
from yellowsound.serve.accept import accept
from yellowsound.serve.body import Upload, read_body
from yellowsound.serve.errors import ApiError
from yellowsound.serve.job import Job, is_job_id
from yellowsound.serve.page.form import FIELDS, Form, last_frame, refused, to_api
from yellowsound.serve.page.pages import home_page
from yellowsound.serve.page.render import HEADERS, fragment, is_htmx, part
from yellowsound.serve.page.visitor import PageRoute
from yellowsound.serve.routes.queue import pause_queue, resume_queue
from yellowsound.serve.routes.videos import Here, cancel_video, delete_video, find_job, owner_of
from yellowsound.serve.service import Service

router = APIRouter(route_class=PageRoute)


@router.post("/clips")
async def create(request: Request, service: Here) -> Response:
    """Accept the form's job, or show each refusal beside its field."""
    raw: dict[str, Any] = {}
    try:
        raw = await read_body(request, service.settings.limits)
        job = await anyio.to_thread.run_sync(_accept, request, service, raw)
    except (ApiError, RequestError) as error:
        form = refused(raw, error)
        return await anyio.to_thread.run_sync(_form_answer, request, service, form, _status(error))
    if not is_htmx(request):
        return RedirectResponse("/", 303, headers=HEADERS)
    place = await anyio.to_thread.run_sync(service.store.waiting_before, job)
    notice = "Accepted: it is next." if place == 0 else f"Accepted: number {place + 1} in the queue."
    return await anyio.to_thread.run_sync(_form_answer, request, service, Form(notice=notice), 200)


def _accept(request: Request, service: Service, raw: Mapping[str, Any]) -> Job:
    sent = to_api(raw)
    image_from = raw.get("image_from")
    if "input_reference" not in sent and isinstance(image_from, str) and is_job_id(image_from):
        sent["input_reference"] = last_frame(service, find_job(service, image_from, request))
    return accept(service, sent, owner_of(request), None)


def _status(error: ApiError | RequestError) -> int:
    return error.status if isinstance(error, ApiError) else 400


def _form_answer(request: Request, service: Service, form: Form, status: int) -> Response:
    if is_htmx(request):
        return part(fragment("form_answer.html", form=form, fields=FIELDS), status)
    return home_page(request, service, form, status)


@router.post("/clips/{video_id}/again")
def again(video_id: str, request: Request, service: Here) -> Response:
    """The same request with a new seed."""
    old = find_job(service, video_id, request)
    job = accept(service, _repeat(service, old), owner_of(request), None)
    if is_htmx(request):
        return Response(status_code=204, headers={**HEADERS, "HX-Redirect": f"/clips/{job.id}"})
    return RedirectResponse(f"/clips/{job.id}", 303, headers=HEADERS)


def _repeat(service: Service, job: Job) -> dict[str, Any]:
    request = job.request
    names = ("prompt", "width", "height", "num_frames", "num_inference_steps", "guidance_scale", "expand_prompt")
    sent = {name: request[name] for name in names}
    sent |= {"model": job.model, "recipe": job.recipe, "generate_sound": request["sample_audio"]}
    if request["negative_prompt"] is not None:
        sent["negative_prompt"] = request["negative_prompt"]
    if request.get("has_image"):
        sent["input_reference"] = _picture(service, job)
    return sent


def _picture(service: Service, job: Job) -> Upload:
    try:
        return Upload("picture", service.files.picture(job.id).read_bytes())
    except FileNotFoundError:
        message = "The picture of that clip is no longer kept."
        raise ApiError(404, "video_not_found", message, "input_reference") from None


@router.post("/clips/{video_id}/cancel")
def cancel(video_id: str, request: Request, service: Here) -> Response:
    """Stop one job; its record and last preview stay."""
    cancel_video(video_id, request, service)
    return _back(request)


@router.post("/clips/{video_id}/delete")
def delete(video_id: str, request: Request, service: Here) -> Response:
    """Remove one job and its files."""
    delete_video(video_id, request, service)
    return _back(request, gone=video_id)


@router.post("/clips/{video_id}/next")
def move_to_front(video_id: str, request: Request, service: Here) -> Response:
    """Put a waiting job first."""
    job = find_job(service, video_id, request)
    if not service.store.move(job.id, 0):
        raise ApiError(409, "not_queued", "This clip does not wait any more.")
    return _back(request)


@router.post("/queue/pause")
def pause(request: Request, service: Here) -> Response:
    """Hand out no more jobs; running ones go on."""
    pause_queue(request, service)
    return _back(request)


@router.post("/queue/resume")
def resume(request: Request, service: Here) -> Response:
    """Go on handing out jobs."""
    resume_queue(request, service)
    return _back(request)


def _back(request: Request, gone: str = "") -> Response:
    """Nothing to swap for htmx (the stream shows the change), else back to where the button was."""
    came_from = urlsplit(request.headers.get("hx-current-url") or request.headers.get("referer", "")).path or "/"
    is_gone = bool(gone) and came_from == f"/clips/{gone}"
    if is_htmx(request):
        return Response(status_code=204, headers={**HEADERS, "HX-Redirect": "/clips"} if is_gone else HEADERS)
    is_own = came_from.startswith("/") and not came_from.startswith("//")
    return RedirectResponse(came_from if is_own and not is_gone else "/clips", 303, headers=HEADERS)
