"""What this server offers: models and capabilities."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from yellowsound.request import MAX_GUIDANCE, MAX_PROMPT_CHARACTERS, MAX_SEED, MAX_STEPS, SIDE_MULTIPLE
from yellowsound.serve import schema
from yellowsound.serve.routes.videos import Here
from yellowsound.serve.served import ServedModel
from yellowsound.serve.service import Service
from yellowsound.serve.submission import MAX_FPS, MAX_SECONDS

router = APIRouter(tags=["models"], responses=schema.ERRORS)


@router.get("/v1/models")
def list_models(service: Here) -> dict[str, Any]:
    """Served names and aliases."""
    return {"object": "list", "data": [_model(service, name) for name in service.models.names]}


@router.get("/v1/models/{name:path}")
def read_model(name: str, service: Here) -> dict[str, Any]:
    """One served name."""
    service.models.pick(name)
    return _model(service, name)


@router.get("/v1/videos/capabilities")
def capabilities(service: Here) -> dict[str, Any]:
    """Sizes, frame rule, limits and defaults of every checkpoint."""
    settings, limits = service.settings, service.settings.limits
    return {
        "object": "capabilities",
        "models": [_capability(model) for model in service.models.all],
        "recipes": list(settings.recipes),
        "limits": {
            "prompt_characters": MAX_PROMPT_CHARACTERS,
            "seed": [0, MAX_SEED],
            "num_inference_steps": [1, MAX_STEPS],
            "guidance_scale": [0, MAX_GUIDANCE],
            "seconds": [1, MAX_SECONDS],
            "fps": [1, MAX_FPS] if settings.allow_fps else None,
            "body_bytes": limits.body_bytes,
            "picture_bytes": limits.picture_bytes,
            "picture_pixels": limits.picture_pixels,
            "queue": limits.queue,
            "queue_per_key": limits.queue_per_key if settings.api_keys else None,
            "run_seconds": limits.run_seconds,
            "retention_seconds": settings.retention_seconds,
        },
        "picture_urls": settings.remote.enabled,
        "unsupported": ["remix", "edits", "extensions", "characters"],
    }


def _model(service: Service, name: str) -> dict[str, Any]:
    model = service.models.pick(name)
    return {"id": name, "object": "model", "created": model.created, "owned_by": "yellowsound", "root": model.name}


def _capability(model: ServedModel) -> dict[str, Any]:
    defaults, geometry = model.defaults, model.geometry
    return {
        "id": model.name,
        "aliases": list(model.aliases),
        "variant": "distilled" if defaults.variant == "piflow" else "base",
        "size_bytes": model.size_bytes,
        "has_audio": model.has_audio,
        "defaults": {
            "size": f"{defaults.width}x{defaults.height}",
            "num_frames": defaults.num_frames,
            "fps": defaults.frame_rate,
            "num_inference_steps": defaults.num_inference_steps,
            "guidance_scale": defaults.guidance_scale,
        },
        "sides": {
            "multiple_of": SIDE_MULTIPLE,
            "min": geometry.min_side,
            "max": geometry.max_side,
            "max_pixels": geometry.max_pixels,
        },
        "num_frames": {"rule": "4k+1", "min": 1, "max": geometry.max_frames},
    }
