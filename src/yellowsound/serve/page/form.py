"""The create form: its fields to the API's raw fields, earlier jobs to its fields, refusals to the field at fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yellowsound.request import RequestError
from yellowsound.serve.body import Upload
from yellowsound.serve.errors import ApiError, from_request_error
from yellowsound.serve.job import Job
from yellowsound.serve.service import Service

FIELDS = (
    "prompt", "input_reference", "model", "size", "seconds", "seed", "recipe", "num_inference_steps",
    "guidance_scale", "negative_prompt", "form",
)  # fmt: skip
_SAME_FIELD = {"width": "size", "height": "size", "num_frames": "seconds", "image": "input_reference"}
_TEXTS = ("prompt", "model", "seconds", "seed", "recipe", "num_inference_steps", "guidance_scale", "negative_prompt")


@dataclass(frozen=True, slots=True)
class Form:
    """What the form shows: values by field, refusals by field, and a line below the button."""

    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    notice: str = ""
    image_from: str = ""

    def value(self, name: str, default: object = "") -> str:
        return self.values.get(name, str(default))


def to_api(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The API's fields from the form's: what was left empty is not sent, so that defaults apply."""
    sent: dict[str, Any] = {name: raw[name] for name in _TEXTS if _is_given(raw.get(name))}
    sent.setdefault("prompt", raw.get("prompt", ""))
    size = raw.get("custom_size") if raw.get("size") == "other" else raw.get("size")
    if _is_given(size) or raw.get("size") == "other":
        sent["size"] = size or "?"
    if raw.get("silent"):
        sent["generate_sound"] = "false"
    if raw.get("expand_prompt"):
        sent["expand_prompt"] = "true"
    picture = raw.get("input_reference")
    if isinstance(picture, Upload) and picture.data:
        sent["input_reference"] = picture
    return sent


def _is_given(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def last_frame(service: Service, job: Job) -> Upload:
    """The last frame of a finished clip as the picture of the next. Raises ApiError 404."""
    try:
        data = service.files.path("last_frame", job.id).read_bytes()
    except FileNotFoundError:
        message = "That clip has no last frame: it is not finished."
        raise ApiError(404, "video_not_ready", message, "input_reference") from None
    return Upload(f"{job.id}.png", data)


def filled_from(job: Job) -> Form:
    """The form with an earlier job's request, for another try with other options."""
    request = job.request
    values = {
        "prompt": request["prompt"],
        "model": job.model,
        "recipe": job.recipe,
        "size": f"{request['width']}x{request['height']}",
        "seed": str(request["seed"]),
        "num_inference_steps": str(request["num_inference_steps"]),
        "guidance_scale": f"{request['guidance_scale']:g}",
        "negative_prompt": request["negative_prompt"] or "",
        "silent": "" if request["sample_audio"] else "yes",
        "expand_prompt": "yes" if request["expand_prompt"] else "",
    }
    seconds = request["num_frames"] / request["frame_rate"]
    return Form({**values, "seconds": f"{int(seconds)}"} if seconds >= 1 else values)


def refused(raw: Mapping[str, Any], error: ApiError | RequestError) -> Form:
    """The form as it was sent, with the refusal beside its field."""
    shown = from_request_error(error) if isinstance(error, RequestError) else error
    name = _SAME_FIELD.get(shown.param or "", shown.param)
    values = {key: value for key, value in raw.items() if isinstance(value, str)}
    return Form(values, {name if name in FIELDS else "form": shown.message}, image_from=values.get("image_from", ""))
