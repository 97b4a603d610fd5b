"""Whether the parts of a checkpoint belong together: scheduler and head width, channels, text widths. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard

from yellowsound.request import ClipRequest, Defaults, RequestError, Variant
from yellowsound.safetensors_header import TensorEntry, refuse

_VARIANTS: dict[str, Variant] = {"FlowMatchEulerDiscreteScheduler": "flow", "PiflowScheduler": "piflow"}
_DEFAULTS = {
    "flow": Defaults("flow", 50, 5.0),
    "piflow": Defaults("piflow", 10, 1.0),
}
_OTHER_WORDS = {"steps": "num_inference_steps", "guidance": "guidance_scale"}
_NOT_DEFAULTS = {"name", "absent", "revision", "synthetic", "source", "note"}
_SIZES = ("model_dim", "ff_dim", "num_visual_blocks", "num_text_blocks")  # what planning and loading go by
_MIXED = "parts of two checkpoints? download the whole repository"


class Part(Protocol):
    """What of a component is looked at here."""

    @property
    def folder(self) -> Path: ...
    @property
    def class_name(self) -> str: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def tensors(self) -> dict[str, TensorEntry]: ...


Parts: TypeAlias = Mapping[str, Part]


def variant(scheduler: Part) -> Variant:
    """``piflow`` for a distilled checkpoint, ``flow`` for a base one, by the scheduler's class."""
    return _VARIANTS[scheduler.class_name]


def defaults(file: Path, own: dict[str, Any], kind: Variant) -> Defaults:
    """The request defaults: of the variant, overruled by the checkpoint's own yellowsound.json (``file``)."""
    values = {_OTHER_WORDS.get(key, key): value for key, value in own.items() if key not in _NOT_DEFAULTS}
    known = {f.name for f in fields(Defaults)} - {"variant"}
    for key in values:
        if key not in known:
            refuse(file, f"unknown field {key!r}", ", ".join(sorted(known)), "remove it")
    try:
        ClipRequest(prompt="-", **values).resolve(replace(_DEFAULTS[kind], **values))
    except RequestError as error:
        refuse(file, str(error), "a legal default", "correct it")
    return replace(_DEFAULTS[kind], **values)


def check(parts: Parts) -> None:
    """Refuse parts whose widths do not meet. Raises CheckpointError naming the config and both values."""
    transformer = parts["transformer"]
    for key in _SIZES:
        _width(transformer, key)
    axes = transformer.config.get("axes_dims")
    if not isinstance(axes, list) or not axes or not all(_is_size(axis) for axis in axes):
        refuse(transformer.folder / "config.json", f"axes_dims={axes!r}", "a list of positive whole numbers", _MIXED)
    _check_heads(parts)
    for name, own_key, other, path in (
        ("vae", "in_visual_dim", "vae", ("latent_channels",)),
        ("audio_vae", "in_audio_dim", "audio_vae", ("latent_channels",)),
        ("text_encoder", "in_text_dim", "text_encoder", ("hidden_size",)),
        ("text_encoder_2", "in_text_dim2", "text_encoder_2", ("hidden_size",)),
    ):
        if name in parts:
            _check_equal(transformer, own_key, parts[other], path[0])
    if "audio_vae" in parts and "vocoder" in parts:
        _check_equal(parts["audio_vae"], "mel_bins", parts["vocoder"], "num_mels")


def _check_heads(parts: Parts) -> None:
    """Heads give one velocity (flow) or ``n_grid`` (PiFlow) a channel; config and stored rows must agree."""
    transformer, scheduler = parts["transformer"], parts["scheduler"]
    piflow = _VARIANTS[scheduler.class_name] == "piflow"
    grid = int(scheduler.config.get("n_grid", 10)) if piflow else 1
    file = scheduler.folder / "scheduler_config.json"
    for tower, rows_each, head in (
        ("visual", math.prod(transformer.config.get("patch_size", (1, 2, 2))), "out_layer.out_layer.weight"),
        ("audio", 1, "audio_out_layer.out_layer.weight"),
    ):
        channels, width = (_width(transformer, f"{side}_{tower}_dim") for side in ("in", "out"))
        if width != channels * grid:
            times = width / channels if channels else math.nan
            found = f"{scheduler.class_name} for a {tower} head of {width} channels ({times:g} times {channels})"
            refuse(file, found, f"a head of {channels * grid}", _right_scheduler(times))
        stored = transformer.tensors.get(head)
        if stored is not None and stored.shape[0] != width * rows_each:
            found = f"{head} with {stored.shape[0]} rows"
            refuse(stored.file, found, f"{width * rows_each} as config.json says", _MIXED)


def _right_scheduler(times: float) -> str:
    fitting = "FlowMatchEulerDiscreteScheduler" if times == 1 else "PiflowScheduler"
    return f"put back the scheduler this checkpoint came with ({fitting})"


def _width(part: Part, key: str) -> int:
    value = part.config.get(key)
    if not _is_size(value):
        refuse(part.folder / "config.json", f"{key}={value!r}", "a positive whole number", _MIXED)
    return value


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_equal(part: Part, key: str, other: Part, other_key: str) -> None:
    inner = other.config.get("text_config")
    source = inner if isinstance(inner, dict) and other_key in inner else other.config
    found, expected = source.get(other_key), _width(part, key)
    if found is not None and found != expected:
        file = other.folder / "config.json"
        refuse(file, f"{other_key}={found!r}", f"{expected} ({key} of {part.folder.name})", _MIXED)
