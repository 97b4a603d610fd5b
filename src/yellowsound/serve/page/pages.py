"""The pages themselves: create, gallery, one clip, compare, status."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from yellowsound.serve.job import is_job_id
from yellowsound.serve.page import choices, memory_plan, regions
from yellowsound.serve.page.cards import card
from yellowsound.serve.page.compare import check_finished, finished, scores
from yellowsound.serve.page.form import Form, filled_from, last_frame, to_api
from yellowsound.serve.page.gallery import STATES, Filter, filter_of
from yellowsound.serve.page.render import HEADERS, fragment, page, part
from yellowsound.serve.page.visitor import PageRoute
from yellowsound.serve.routes.videos import Here, find_job
from yellowsound.serve.service import Service

router = APIRouter(route_class=PageRoute)
JobId = Annotated[str, Query(max_length=40)]


@router.get("/")
def show_home(
    request: Request, service: Here, same_as: JobId = "", image_from: JobId = "", prompt: str = ""
) -> Response:
    """The form, the queue and the newest clips; ``same_as`` fills the form from an earlier job."""
    form = filled_from(find_job(service, same_as, request)) if same_as else Form({"prompt": prompt} if prompt else {})
    if image_from:
        last_frame(service, find_job(service, image_from, request))
        form = replace(form, image_from=image_from)
    return home_page(request, service, form)


def home_page(request: Request, service: Service, form: Form, status: int = 200) -> Response:
    """The home page around ``form``."""
    live = regions.home(service, regions.owner_filter(service, request))
    return page(request, "home.html", status, live=live, **form_context(request, service, form))


def form_context(request: Request, service: Service, form: Form) -> dict[str, object]:
    """What the form's template needs."""
    model = service.models.find(form.value("model")) or service.models.default
    offered = choices.sizes(model)
    default_size = offered[0].value if offered else ""
    size = form.value("size") or default_size
    start = find_job(service, form.image_from, request) if is_job_id(form.image_from) else None
    values = {"size": size, "seconds": choices.default_seconds(model), "model": model.name, **form.values}
    return {
        "form": replace(form, values=values),
        "models": service.models.all,
        "model": model,
        "sizes": offered,
        "is_other_size": size not in [choice.value for choice in offered],
        "most_seconds": choices.most_seconds(model),
        "recipes": choices.recipes(service, to_api(values)),
        "chosen_recipe": form.value("recipe") or service.settings.recipes[0],
        "image": card(service, start) if start else None,
    }


@router.get("/expected")
def show_expected(request: Request, service: Here) -> Response:
    """The recipes with their seconds for the clip that the form describes now."""
    raw = dict(request.query_params)
    offered = choices.recipes(service, to_api(raw))
    chosen = raw.get("recipe") or service.settings.recipes[0]
    return part(fragment("recipes.html", recipes=offered, chosen_recipe=chosen))


@router.get("/clips")
def show_clips(request: Request, service: Here, wanted: Annotated[Filter, Depends(filter_of)]) -> Response:
    """The gallery."""
    live = regions.clips(service, regions.owner_filter(service, request), wanted)
    query = wanted.query(wanted.after)
    return page(request, "clips.html", wanted=wanted, states=STATES, query=query, live=live)


@router.get("/clips/{video_id}")
def show_clip(video_id: str, request: Request, service: Here) -> Response:
    """One job."""
    job = find_job(service, video_id, request)
    return page(request, "clip.html", job=card(service, job), live=regions.clip(service, job.id))


@router.get("/compare")
def show_compare(
    request: Request, service: Here, clip: Annotated[list[str] | None, Query(max_length=40)] = None
) -> Response:
    """Two clips side by side; with fewer chosen, the choice."""
    chosen = [check_finished(find_job(service, job_id, request)) for job_id in (clip or [])[:2] if job_id]
    offered = finished(service, regions.owner_filter(service, request))
    offered += [job for job in chosen if job.id not in {other.id for other in offered}]
    found = scores(service, *chosen) if len(chosen) == 2 else {}
    return page(
        request,
        "compare.html",
        chosen=[card(service, job) for job in chosen],
        offered=[card(service, job) for job in offered],
        scores=found,
    )


@router.get("/status")
def show_status(request: Request, service: Here) -> Response:
    """Card, memory plan, workers, disk and the last failures."""
    return page(request, "status.html", live=regions.machine(service, regions.owner_filter(service, request)))


@router.get("/status/plan")
def show_plan(service: Here) -> Response:
    """The card and the plan of every checkpoint; a part of its own because asking the driver takes a moment."""
    plans = [memory_plan.planned(model, service.admission) for model in service.models.all]
    card_words = memory_plan.card_words(service.settings, service.admission)
    return part(fragment("plan.html", card=card_words, plans=plans))


@router.get("/videos")
def moved() -> Response:
    """An address people try."""
    return RedirectResponse("/clips", 303, headers=HEADERS)
