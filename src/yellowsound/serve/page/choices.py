"""What the form offers: models, sizes, lengths, and each recipe with the seconds it takes on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yellowsound.request import SIDE_MULTIPLE, RequestError, frames_for_seconds
from yellowsound.serve.errors import ApiError
from yellowsound.serve.job import kind_of
from yellowsound.serve.served import ServedModel
from yellowsound.serve.service import Service
from yellowsound.serve.submission import MAX_SECONDS, read_submission, request_fields

NO_HISTORY = "no such clip was made here yet"


@dataclass(frozen=True, slots=True)
class Size:
    """One size the form offers; ``value`` is WIDTHxHEIGHT."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class RecipeChoice:
    """One recipe and what it takes here: ``seconds``, or the ``reason`` why nobody knows."""

    name: str
    seconds: float | None
    reason: str


def sizes(model: ServedModel) -> list[Size]:
    """The model's own size, the same upright, a square of the same area, and larger ones where they are made."""
    own = model.defaults.width, model.defaults.height
    side = max(1, round(math.sqrt(own[0] * own[1]) / SIDE_MULTIPLE)) * SIDE_MULTIPLE
    found = {own: "wide", (own[1], own[0]): "upright", (side, side): "square"}
    if own == (864, 480):
        found |= {(1280, 720): "wide, large", (720, 1280): "upright, large"}
    limit = model.geometry
    return [
        Size(f"{width}x{height}", f"{width} × {height} · {label}")
        for (width, height), label in found.items()
        if limit.min_side <= min(width, height)
        and max(width, height) <= limit.max_side
        and width * height <= limit.max_pixels
    ]


def default_seconds(model: ServedModel) -> str:
    """The whole seconds that give the model's own frame count, or empty: then the form leaves the length to it."""
    frames, rate = model.defaults.num_frames, model.defaults.frame_rate
    whole = int(frames / rate)
    return str(whole) if whole >= 1 and frames_for_seconds(whole, rate) == frames else ""


def most_seconds(model: ServedModel) -> float:
    """The longest clip of a model."""
    return min(MAX_SECONDS, math.floor(model.geometry.max_frames / model.defaults.frame_rate))


def recipes(service: Service, raw: Mapping[str, Any]) -> list[RecipeChoice]:
    """Every recipe with the median of its last runs of the clip that ``raw`` describes."""
    names = service.settings.recipes
    try:
        asked = read_submission({**raw, "prompt": "a clip", "recipe": names[0]}, service.models, service.settings)
    except (ApiError, RequestError):
        return [RecipeChoice(name, None, "the fields above are not complete") for name in names]
    fields = request_fields(asked.request)
    return [_choice(service, asked.model.name, name, fields) for name in names]


def _choice(service: Service, model: str, recipe: str, fields: dict[str, Any]) -> RecipeChoice:
    seconds = service.history.expected_seconds(kind_of(model, recipe, fields))
    return RecipeChoice(recipe, seconds, "" if seconds is not None else NO_HISTORY)
