"""The checkpoints a server offers: names, where they lie, their defaults and what sizes they take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from yellowsound.request import MAX_FRAMES, MAX_SIDE, SIDE_MULTIPLE, ClipRequest, Defaults, RequestError
from yellowsound.serve.errors import ApiError
from yellowsound.serve.settings import Settings
from yellowsound.serve.worker_protocol import FAKE as FAKE

_SMALL_BYTES = 1 << 30  # below: a demo or test checkpoint, which makes thumbnails too


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sides in pixels, their product, and frames that a checkpoint is asked for at most."""

    min_side: int = 256
    max_side: int = 1920
    max_pixels: int = 1920 * 1088
    max_frames: int = 241

    def check(self, request: ClipRequest) -> None:
        """Refuse a resolved request outside these limits. Raises RequestError."""
        width, height, frames = request.width, request.height, request.num_frames
        assert width is not None and height is not None and frames is not None
        low, high = self.min_side, self.max_side
        if not (low <= width <= high and low <= height <= high):
            nearest = "x".join(str(min(max(side, low), high)) for side in (width, height))
            raise RequestError("size", f"{width}x{height}", f"sides must be from {low} to {high} pixels", nearest)
        if width * height > self.max_pixels:
            side = self.max_pixels // max(width, height) // SIDE_MULTIPLE * SIDE_MULTIPLE
            nearest = f"{width}x{side}" if width >= height else f"{side}x{height}"
            problem = f"has {width * height} pixels, at most {self.max_pixels} are made"
            raise RequestError("size", f"{width}x{height}", problem, nearest)
        if frames > self.max_frames:
            raise RequestError("num_frames", frames, f"at most {self.max_frames} are made here", self.max_frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One checkpoint as clients see it (``name``) and as a worker opens it (``source``)."""

    name: str
    source: str
    defaults: Defaults
    geometry: Geometry
    size_bytes: int = 0
    has_audio: bool = True
    aliases: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))


class ServedModels:
    """All checkpoints of a server; the first is the default."""

    def __init__(self, models: tuple[ServedModel, ...]) -> None:
        self.all = models
        self._by_name = {name: model for model in models for name in (model.name, *model.aliases)}

    @property
    def default(self) -> ServedModel:
        return self.all[0]

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def pick(self, name: str | None) -> ServedModel:
        """The model of that name, alias, or the default. Raises ApiError 404."""
        if name is None:
            return self.default
        if name not in self._by_name:
            shown = name if len(name) <= 60 else name[:57] + "..."
            names = ", ".join(self.names)
            raise ApiError(404, "model_not_found", f"model={shown}: not served here; served: {names}", "model")
        return self._by_name[name]

    def find(self, name: str) -> ServedModel | None:
        return self._by_name.get(name)


def open_models(settings: Settings) -> ServedModels:
    """Open every named checkpoint by its headers. Raises CheckpointError, RequestError (a name twice)."""
    models = tuple(_open(spec, settings) for spec in settings.checkpoints)
    models = tuple(replace(m, aliases=_aliases(m.name, m is models[0], settings)) for m in models)
    names = [name for model in models for name in (model.name, *model.aliases)]
    for name in names:
        if names.count(name) > 1:
            raise RequestError("checkpoints", name, "is the name of two: name one with NAME=FOLDER")
    return ServedModels(models)


def _open(spec: str, settings: Settings) -> ServedModel:
    name, equals, source = spec.partition("=")
    if not equals or "/" in name or name.startswith(FAKE):
        name, source = "", spec
    if source.startswith(FAKE):
        return _fake(name, source, settings)
    from yellowsound.checkpoint import Checkpoint

    folder = _resolve(source)
    checkpoint = Checkpoint.open(folder)
    name = name or checkpoint.name
    return ServedModel(
        name=name,
        source=str(folder),
        defaults=checkpoint.defaults,
        geometry=_geometry(checkpoint.size_bytes),
        size_bytes=checkpoint.size_bytes,
        has_audio=checkpoint.has_audio,
    )


def _resolve(source: str) -> Path:
    from yellowsound.weights.catalog import resolve

    return Path(resolve(source)).resolve()


def _geometry(size_bytes: int) -> Geometry:
    if size_bytes >= _SMALL_BYTES:
        return Geometry()
    return Geometry(min_side=SIDE_MULTIPLE, max_side=MAX_SIDE, max_frames=MAX_FRAMES)


def _aliases(name: str, is_first: bool, settings: Settings) -> tuple[str, ...]:
    """``--model-alias ALIAS=NAME``; without ``=NAME`` it is an alias of the first checkpoint's name."""
    pairs = (alias.partition("=") for alias in settings.model_aliases)
    return tuple(alias for alias, equals, target in pairs if target == name or (is_first and not equals))


def _fake(name: str, source: str, settings: Settings) -> ServedModel:
    """A made-up model for tests: ``fake:NAME`` or ``fake:NAME?distill=1``, never without the test setting."""
    if not settings.allow_fake_engines:
        raise RequestError("checkpoints", source, "fake engines are for tests only")
    own, _, options = source.removeprefix(FAKE).partition("?")
    distilled = "distill=1" in options
    size: dict[str, Any] = {"width": 64, "height": 48, "num_frames": 9}
    defaults = (
        Defaults(variant="piflow", num_inference_steps=10, guidance_scale=1.0, **size)
        if distilled
        else Defaults(num_inference_steps=4, **size)
    )
    if "large=1" in options:
        defaults = Defaults()
    name = name or own
    geometry = Geometry() if "large=1" in options else _geometry(0)
    return ServedModel(name=name, source=source, defaults=defaults, geometry=geometry)
