"""The shapes of answers and of the create request, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from yellowsound.request import MAX_FRAMES, MAX_GUIDANCE, MAX_PROMPT_CHARACTERS, MAX_SEED, MAX_STEPS


class JobError(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class VideoJob(BaseModel):
    """A job: the fields of the OpenAI video object, of vLLM-Omni's, and our own."""

    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str
    size: str
    seconds: str
    remixed_from_video_id: str | None
    error: JobError | None
    quality: str
    media_type: str
    file_name: str | None
    inference_time_s: float | None
    stage_durations: dict[str, float]
    peak_memory_mb: float | None
    fps: float
    num_frames: int
    duration_s: float
    seed: int
    num_inference_steps: int
    guidance_scale: float
    negative_prompt: str | None
    recipe: str
    has_image: bool
    has_audio: bool
    queue_position: int | None
    stage: str | None
    step: int | None
    total_steps: int | None
    eta_s: float | None
    expected_s: float | None
    started_at: float | None
    attempt: int
    bytes: int | None
    content_url: str | None
    thumbnail_url: str | None
    last_frame_url: str | None
    preview_url: str | None
    warnings: list[str]


class VideoList(BaseModel):
    """One page of jobs."""

    object: Literal["list"]
    data: list[VideoJob]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """A job is gone."""

    id: str
    object: Literal["video.deleted"]
    deleted: bool


class ErrorAnswer(BaseModel):
    """The one error envelope: what is wrong, with which field."""

    error: dict[str, str | None]


_ERROR = {"content": {"application/json": {"schema": ErrorAnswer.model_json_schema()}}}
ERRORS: dict[int | str, dict[str, Any]] = {  # plain schemas: a model for each status and route would slow every start
    status: {"description": reason, **_ERROR}
    for status, reason in {
        400: "A field cannot be taken",
        401: "No key, or a wrong one",
        403: "From another web site",
        404: "Not here",
        405: "Another method",
        409: "In conflict with an earlier request",
        413: "Too large",
        415: "Not a body that is read here",
        422: "The video failed",
        429: "The queue is full",
        500: "The server failed",
        503: "Not ready",
        507: "The disk is full",
    }.items()
}

_INTEGER: dict[str, Any] = {"type": "integer"}
_FIELDS: dict[str, Any] = {
    "prompt": {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT_CHARACTERS},
    "model": {"type": "string"},
    "recipe": {"type": "string"},
    "size": {"type": "string", "example": "864x480", "description": "WIDTHxHEIGHT, both multiples of 16"},
    "width": _INTEGER,
    "height": _INTEGER,
    "seconds": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 1, "maximum": 10}]},
    "num_frames": {**_INTEGER, "minimum": 1, "maximum": MAX_FRAMES, "description": "4k+1; others are rounded"},
    "fps": {"type": "number"},
    "num_inference_steps": {**_INTEGER, "minimum": 1, "maximum": MAX_STEPS},
    "guidance_scale": {"type": "number", "minimum": 0, "maximum": MAX_GUIDANCE},
    "seed": {**_INTEGER, "minimum": -1, "maximum": MAX_SEED, "description": "-1 or absent: random"},
    "negative_prompt": {"type": "string", "maxLength": MAX_PROMPT_CHARACTERS, "description": "empty means empty"},
    "generate_sound": {"type": "boolean"},
    "expand_prompt": {"type": "boolean"},
    "extra_params": {"anyOf": [{"type": "object"}, {"type": "string"}]},
}


def create_body() -> dict[str, Any]:
    """OpenAPI's ``requestBody`` of the create call, in its three encodings."""
    picture = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"image_url": {"type": "string"}}}]}
    text = {"type": "object", "required": ["prompt"], "properties": {**_FIELDS, "input_reference": picture}}
    upload = {"type": "string", "format": "binary"}
    form = {"type": "object", "required": ["prompt"], "properties": {**_FIELDS, "input_reference": upload}}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {"schema": form},
                "application/json": {"schema": text},
                "application/x-www-form-urlencoded": {"schema": text},
            },
        }
    }
