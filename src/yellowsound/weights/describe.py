"""What a checkpoint is, from headers alone: variant, parameters, bytes by part and dtype, and how it differs from

the published ones. No torch; no weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yellowsound import checkpoint_files as files
from yellowsound.checkpoint import Checkpoint, Component
from yellowsound.request import RequestError, Variant
from yellowsound.safetensors_header import read_json
from yellowsound.weights.catalog import CATALOG, Published, find
from yellowsound.weights.file_layout import lay_out
from yellowsound.weights.shapes import Size, transformer_config, transformer_tensors

UPSCALER_PIPELINE = "Kandinsky6SRPipeline"
_SIZES: tuple[Size, ...] = ("pro", "lite")
_VARIANTS: tuple[Variant, ...] = ("flow", "piflow")


@dataclass(frozen=True, slots=True)
class PartFacts:
    """One part: its class, stored numbers (buffers included) and bytes by dtype."""

    name: str
    class_name: str
    parameters: int
    size_bytes: int
    bytes_by_dtype: dict[str, int]
    files: int


@dataclass(frozen=True, slots=True)
class Description:
    """A whole folder. ``like``: published names whose transformer has the same tensors. ``notes``: what differs."""

    name: str
    folder: str
    task: str
    variant: str | None
    like: tuple[str, ...]
    revision: str | None
    steps: int | None
    guidance: float | None
    audio_latent_scale: float | None
    absent: tuple[str, ...]
    parts: tuple[PartFacts, ...]
    licences: str | None
    notes: tuple[str, ...]

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "parameters": self.parameters, "size_bytes": self.size_bytes}


def describe(folder: Path) -> Description:
    """Describe a generation or an upscaler checkpoint. Raises CheckpointError for a damaged or unknown one."""
    index = folder / "model_index.json"
    if index.is_file() and read_json(index).get("_class_name") == UPSCALER_PIPELINE:
        return _upscaler(folder)
    checkpoint = Checkpoint.open(folder)
    transformer = checkpoint.components["transformer"]
    like = published_like(transformer)
    entry = _entry(checkpoint, like)
    audio = checkpoint.components.get("audio_vae")
    return Description(
        name=checkpoint.name,
        folder=str(folder),
        task="generate",
        variant=checkpoint.variant,
        like=like,
        revision=checkpoint.revision,
        steps=checkpoint.defaults.num_inference_steps,
        guidance=checkpoint.defaults.guidance_scale,
        audio_latent_scale=None if audio is None else audio.config.get("scaling_factor"),
        absent=checkpoint.absent,
        parts=tuple(_facts(part) for part in checkpoint.components.values() if part.tensors),
        licences=entry.licences if entry and not checkpoint.name.startswith("synthetic-") else None,
        notes=(*_wrong_totals(checkpoint), *(differences(checkpoint, entry) if entry else ())),
    )


def _wrong_totals(checkpoint: Checkpoint) -> Iterator[str]:
    for part in checkpoint.components.values():
        note = files.total_note(part.folder, files.weight_stem(part.name), part.tensors)
        if note is not None:
            yield note


def published_like(transformer: Component) -> tuple[str, ...]:
    """Published names whose transformer has exactly these tensor names and shapes; empty if none has."""
    shapes = {entry.name: entry.shape for entry in transformer.tensors.values()}
    for size in _SIZES:
        for variant in _VARIANTS:
            published = transformer_tensors(transformer_config(size, variant), variant)
            if shapes == {name: shape for name, (_, shape) in published.items()}:
                distilled = variant == "piflow"
                return tuple(e.name for e in CATALOG if e.name.split("-")[0] == size and (e.steps == 10) == distilled)
    return ()


def differences(checkpoint: Checkpoint, entry: Published) -> Iterator[str]:
    """Where ``checkpoint`` departs from what is known of the published ``entry``, one sentence each."""
    transformer = checkpoint.components["transformer"]
    size: Size = "pro" if entry.name.startswith("pro") else "lite"
    known = transformer_config(size, checkpoint.variant)
    for key, value in known.items():
        found = transformer.config.get(key, value)
        if found != value:
            yield f"transformer/config.json: {key} is {found}, published {value}"
    yield from _file_differences(transformer, entry, size, checkpoint.variant)
    audio = checkpoint.components.get("audio_vae")
    scale = None if audio is None else audio.config.get("scaling_factor")
    if scale is not None and entry.audio_latent_scale is not None and scale != entry.audio_latent_scale:
        yield f"audio_vae/config.json: scaling_factor is {scale}, published {entry.audio_latent_scale} (loudness)"


def _file_differences(transformer: Component, entry: Published, size: Size, variant: Variant) -> Iterator[str]:
    stored = {e.name: e.dtype for e in transformer.tensors.values()}
    published = transformer_tensors(transformer_config(size, variant), variant)
    other = sorted(name for name, (dtype, _) in published.items() if stored.get(name, dtype) != dtype)
    if other:
        yield f"transformer: {len(other)} tensors are stored in another dtype than published, first {other[0]}"
    places = {e.file for e in transformer.tensors.values()}
    if len(places) == 1 and entry.transformer_file_bytes is not None:
        found = next(iter(places)).stat().st_size
        if found != entry.transformer_file_bytes:
            yield f"transformer: its file has {found} bytes, published {entry.transformer_file_bytes}"


def describe_published(entry: Published) -> Description:
    """What the published headers say of ``entry``'s transformer, for one that is not downloaded.

    Raises RequestError for an upscaler, whose headers were not readable.
    """
    if entry.task != "generate":
        raise RequestError("folder", entry.name, "nothing is known of its headers; download it first")
    size, variant = _kind(entry)
    tensors = transformer_tensors(transformer_config(size, variant), variant)
    by_dtype: dict[str, int] = {}
    count = 0
    for placed in lay_out(tensors).tensors:
        by_dtype[placed.dtype] = by_dtype.get(placed.dtype, 0) + placed.size_bytes
        count += math.prod(placed.shape)
    part = PartFacts("transformer", "Kandinsky6Transformer3DModel", count, sum(by_dtype.values()), by_dtype, 1)
    return Description(
        name=entry.name,
        folder="",
        task="generate",
        variant=variant,
        like=(entry.name,),
        revision=None,
        steps=entry.steps,
        guidance=entry.guidance,
        audio_latent_scale=entry.audio_latent_scale,
        absent=(),
        parts=(part,),
        licences=entry.licences,
        notes=(),
    )


def _kind(entry: Published) -> tuple[Size, Variant]:
    return "pro" if entry.name.startswith("pro") else "lite", "piflow" if entry.steps == 10 else "flow"


def _entry(checkpoint: Checkpoint, like: tuple[str, ...]) -> Published | None:
    """The catalog entry that ``checkpoint`` is to be compared with: the one of its name, else the first like it."""
    named = find(checkpoint.name)
    if named is not None and named.task == "generate":
        return named
    return find(like[0]) if like else None


def _upscaler(folder: Path) -> Description:
    index = read_json(folder / "model_index.json")
    parts = []
    for name, value in index.items():
        if not files.is_named(value) or name == "scheduler":
            continue
        config = files.config(folder / name / "config.json", value[1])
        weights = files.weights(folder / name, files.weight_stem(name))
        parts.append(_facts(Component(name, folder / name, value[1], config, weights.tensors, weights.files)))
    name = files.folder_name(folder)
    entry = find(name)
    distilled = index.get("scheduler", [None, None])[1] == "PiflowScheduler"
    return Description(
        name=name,
        folder=str(folder),
        task="upscale",
        variant="piflow" if distilled else "flow",
        like=(),
        revision=files.revision(folder, {}),
        steps=entry.steps if entry else None,
        guidance=entry.guidance if entry else None,
        audio_latent_scale=None,
        absent=(),
        parts=tuple(parts),
        licences=entry.licences if entry else None,
        notes=(),
    )


def _facts(part: Component) -> PartFacts:
    by_dtype: dict[str, int] = {}
    for entry in part.tensors.values():
        by_dtype[entry.dtype] = by_dtype.get(entry.dtype, 0) + entry.size_bytes
    places = {entry.file for entry in part.tensors.values()}
    return PartFacts(part.name, part.class_name, part.parameters, part.size_bytes, by_dtype, len(places))
