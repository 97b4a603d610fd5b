"""From raw fields to a validated request: the field rules of the create call.

Unknown fields are never an error, so that clients of other servers work unchanged; they are named in ``warnings``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yellowsound.request import ClipRequest, RequestError, frames_for_seconds, parse_size
from yellowsound.serve import fields
from yellowsound.serve.body import Upload
from yellowsound.serve.errors import ApiError
from yellowsound.serve.served import ServedModel, ServedModels
from yellowsound.serve.settings import Settings

PICTURE_FIELDS = ("input_reference", "image_reference")
_READ = {
    "prompt", "model", "recipe", "size", "width", "height", "seconds", "num_frames", "fps", "num_inference_steps",
    "guidance_scale", "seed", "negative_prompt", "generate_sound", "sample_audio", "extra_params", "expand_prompt",
    "n", "num_outputs_per_prompt", "output_format", *PICTURE_FIELDS,
}  # fmt: skip
_EXTRA_READ = {"sample_audio"}
MAX_SECONDS = 10.0
MAX_FPS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A create request that can be run: model, recipe, resolved request, and the picture as it was sent."""

    model: ServedModel
    recipe: str
    request: ClipRequest
    picture: Any
    warnings: tuple[str, ...]


def read_submission(raw: Mapping[str, Any], models: ServedModels, settings: Settings) -> Submission:
    """Validate raw fields against the chosen checkpoint. Raises RequestError, ApiError."""
    model = models.pick(fields.text(raw, "model"))
    request = _request(raw, model, settings).resolve(model.defaults)
    model.geometry.check(request)
    return Submission(
        model=model,
        recipe=_recipe(raw, settings),
        request=request,
        picture=_picture(raw),
        warnings=(*request.warnings, *_overruled(raw, request), *_ignored(raw)),
    )


def body_hash(raw: Mapping[str, Any]) -> str:
    """The same for the same fields, however they were sent; uploads count by content."""
    return hashlib.sha256(json.dumps(raw, sort_keys=True, default=_hashable).encode()).hexdigest()


def request_fields(request: ClipRequest) -> dict[str, Any]:
    """The ClipRequest fields that are stored; the picture and the warnings have places of their own."""
    names = [f.name for f in dataclasses.fields(request) if f.name not in ("image", "warnings")]
    return {name: getattr(request, name) for name in names}


def _hashable(value: object) -> str:
    if isinstance(value, Upload):
        return hashlib.sha256(value.data).hexdigest()
    return repr(value)


def _request(raw: Mapping[str, Any], model: ServedModel, settings: Settings) -> ClipRequest:
    _only_one_clip(raw)
    if raw.get("prompt") is None:
        raise ApiError(400, "missing_required_parameter", "prompt: must be given", "prompt")
    width, height = _size(raw)
    negative = raw.get("negative_prompt")
    return ClipRequest(
        prompt=raw["prompt"],
        negative_prompt=negative,
        width=width,
        height=height,
        num_frames=_frames(raw, model),
        frame_rate=_frame_rate(raw, model, settings),
        num_inference_steps=fields.integer(raw, "num_inference_steps"),
        guidance_scale=fields.number(raw, "guidance_scale"),
        seed=fields.integer(raw, "seed"),
        sample_audio=_sound(raw),
        expand_prompt=fields.switch(raw, "expand_prompt") or False,
    )


def _only_one_clip(raw: Mapping[str, Any]) -> None:
    for name in ("n", "num_outputs_per_prompt"):
        count = fields.integer(raw, name)
        if count not in (None, 1):
            raise RequestError(name, count, "one clip is made for each request", 1)
    container = fields.text(raw, "output_format")
    if container not in (None, "mp4"):
        raise RequestError("output_format", container, "clips are MP4 files", "mp4")


def _size(raw: Mapping[str, Any]) -> tuple[int | None, int | None]:
    size = fields.text(raw, "size")
    if size is not None:
        return parse_size(size)
    return fields.integer(raw, "width"), fields.integer(raw, "height")


def _frames(raw: Mapping[str, Any], model: ServedModel) -> int | None:
    count = fields.integer(raw, "num_frames")
    seconds = fields.number(raw, "seconds")
    if seconds is not None and not 1.0 <= seconds <= MAX_SECONDS:
        nearest = f"{min(max(seconds, 1.0), MAX_SECONDS):g}"
        raise RequestError("seconds", raw["seconds"], f"must be from 1 to {MAX_SECONDS:g}", nearest)
    if count is not None or seconds is None:
        return count
    return frames_for_seconds(seconds, model.defaults.frame_rate)


def _frame_rate(raw: Mapping[str, Any], model: ServedModel, settings: Settings) -> float | None:
    fps = fields.number(raw, "fps")
    native = model.defaults.frame_rate
    if fps is None or fps == native:
        return None
    if settings.allow_fps and 1.0 <= fps <= MAX_FPS:
        return fps
    raise RequestError("fps", raw["fps"], f"this model makes {native:g} frames a second", f"{native:g}")


def _sound(raw: Mapping[str, Any]) -> bool:
    extra = fields.mapping(raw, "extra_params")
    asked = {
        "generate_sound": fields.switch(raw, "generate_sound"),
        "sample_audio": fields.switch(raw, "sample_audio"),
        "extra_params.sample_audio": fields.switch(extra, "sample_audio"),
    }
    told = {name: value for name, value in asked.items() if value is not None}
    if len(set(told.values())) > 1:
        said = ", ".join(f"{name}={str(value).lower()}" for name, value in told.items())
        raise RequestError("generate_sound", said, "these switch the same thing and must agree")
    return next(iter(told.values()), True)


def _recipe(raw: Mapping[str, Any], settings: Settings) -> str:
    recipe = fields.text(raw, "recipe") or settings.recipes[0]
    if recipe not in settings.recipes:
        raise RequestError("recipe", recipe, f"served recipes: {', '.join(settings.recipes)}", settings.recipes[0])
    return recipe


def _picture(raw: Mapping[str, Any]) -> Any:
    sent = [raw[name] for name in PICTURE_FIELDS if not _is_absent(raw.get(name))]
    if len(sent) > 1 or any(isinstance(value, list) and len(value) > 1 for value in sent):
        raise RequestError("image", "two pictures", "one picture is taken")
    if not sent:
        return None
    return sent[0][0] if isinstance(sent[0], list) else sent[0]


def _is_absent(value: Any) -> bool:
    if isinstance(value, Upload):
        return not value.filename and not value.data
    return value in (None, "", {}, [])


def _overruled(raw: Mapping[str, Any], made: ClipRequest) -> list[str]:
    """Fields that were read and lost against another one, as other servers let them lose: said, not refused."""
    lost = []
    if raw.get("num_frames") is not None and raw.get("seconds") is not None:
        seconds = fields.number(raw, "seconds")
        if seconds is not None and frames_for_seconds(seconds, made.frame_rate or 24.0) != made.num_frames:
            lost.append(f"seconds={seconds:g} is not used: num_frames={made.num_frames} was given too")
    for name, side in (("width", made.width), ("height", made.height)):
        value = fields.integer(raw, name)
        if value not in (None, side):
            lost.append(f"{name}={value} is not used: size={made.width}x{made.height} was given too")
    return lost


def _ignored(raw: Mapping[str, Any]) -> list[str]:
    unknown = [name for name in raw if name not in _READ]
    extra = [f"extra_params.{name}" for name in fields.mapping(raw, "extra_params") if name not in _EXTRA_READ]
    return [f"{name[:60]} is not read by this server: ignored" for name in (*unknown, *extra)]
