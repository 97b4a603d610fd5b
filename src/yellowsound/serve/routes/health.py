"""Whether the server can serve, and its figures."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from yellowsound.serve import schema
from yellowsound.serve.metrics import CONTENT_TYPE, an_hour_ago
from yellowsound.serve.routes.videos import Here

router = APIRouter(tags=["status"], responses=schema.ERRORS)


@router.head("/health", include_in_schema=False)
@router.get("/health")
def health(service: Here) -> JSONResponse:
    """200 while a worker with a loaded model lives, else 503. Needs no key and says nothing of jobs."""
    ready = service.dispatcher.can_serve and not service.broadcast.stopping
    if ready:
        return JSONResponse({"status": "ok"})
    troubles = {str(state["trouble"]) for state in service.dispatcher.states() if state["trouble"]}
    body = {"status": "stopping" if service.broadcast.stopping else "not_ready", "reasons": sorted(troubles)}
    return JSONResponse(body, 503, headers={"Retry-After": "5"})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(service: Here) -> Response:
    """Prometheus figures."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


@router.get("/v1/status")
def status(service: Here) -> dict[str, Any]:
    """Workers, disk, throughput and the last failures, for the page and for people."""
    failures = [
        {"id": job.id, "code": job.error_code, "message": job.error_message, "time": job.completed_at}
        for job in service.store.last_failures()
    ]
    return {
        "object": "status",
        "ready": service.dispatcher.can_serve,
        "started_at": service.started_at,
        "workers": service.dispatcher.states(),
        "disk_free_bytes": service.files.free_bytes(),
        "disk_floor_bytes": service.settings.disk_floor_bytes,
        "jobs": service.store.counts(),
        "clips_last_hour": service.store.completed_since(an_hour_ago()),
        "last_failures": failures,
    }
