"""Units: the weights that move together, cut out of a checkpoint's headers.

Knows which tensors belong to which block, layer or part, how often each is needed and what it weighs on disk and
on the device. Knows nothing of budgets or homes, reads no weight and imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from yellowsound.checkpoint import Checkpoint, Component, TensorEntry
from yellowsound.weights.dtypes import stays_float32

Need = Literal["step", "clip"]
Kind = Literal["block", "modulations", "text_block", "layer", "vision", "head", "rest", "whole"]
Dtype = Literal["bfloat16", "float16", "float32"]

ALIGNMENT_BYTES = (
    512  # of every view on the device: the allocator's own, so kernels choose as they do for torch's tensors
)
PAGE_BYTES = 4096  # O_DIRECT reads whole pages around a span
HUGE_PAGE_BYTES = 2 << 20

ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "float32": 4, "bfloat16": 2, "float16": 2,
}  # fmt: skip
_RUN_NAME = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

_BLOCK = re.compile(r"visual_transformer_blocks\.(\d+)\.(.+)")
_TEXT_BLOCK = re.compile(r"((?:video|audio)_text_transformer_blocks\.\d+)\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_MODULATION = re.compile(r"(?:^|\.)(?:visual_modulation|va_modulation|av_modulation)\.")


class Home(StrEnum):
    """Where a unit lives between its visits to the device."""

    VRAM = "vram"
    RAM = "ram"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Unit:
    """Weights that move together. ``needed`` says how often: at each step, or once in a clip.

    index: position among the units of its kind and component (the block index), -1 for single ones.
    stored_bytes: as they lie in the file. device_bytes: after the cast, every view aligned to 512 bytes.
    slot_bytes: room for the stored bytes and for a cast copy of each tensor whose dtype changes on the way.
    """

    name: str
    component: str
    kind: Kind
    needed: Need
    index: int
    tensors: tuple[TensorEntry, ...]
    stored_bytes: int
    device_bytes: int
    slot_bytes: int

    @property
    def ram_bytes(self) -> int:
        """What a home in host memory takes: the stored bytes, a page of skew at each end, whole huge pages if large."""
        extents = len({t.file for t in self.tensors})
        size = self.stored_bytes + 2 * PAGE_BYTES * max(extents, 1)
        return round_up(size, HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """All that a plan needs to know of a checkpoint: its units in order of use and the widths of its transformer."""

    name: str
    units: tuple[Unit, ...]
    dtype: Dtype
    model_dim: int
    ff_dim: int
    audio_dim: int
    audio_ff_dim: int
    head_dim: int
    text_blocks: int
    text_dim: int
    text_layers_kv_bytes: int  # key and value of one token over all layers of the text encoder
    vae_channels: int  # of the video decoder's widest stretch at full size

    def of(self, component: str, *kinds: Kind) -> tuple[Unit, ...]:
        """Units of one component, of the given kinds (all kinds if none is given), in order of use."""
        return tuple(u for u in self.units if u.component == component and (not kinds or u.kind in kinds))

    @property
    def blocks(self) -> tuple[Unit, ...]:
        return self.of("transformer", "block")


def units_of(
    checkpoint: Checkpoint | Mapping[str, Component], dtype: Dtype = "bfloat16", *, hoisted: bool = True
) -> dict[str, Unit]:
    """Cut a checkpoint into units, by name and in order of use.

    hoisted: modulations of a fused block are a unit of their own, needed once per clip, and so are the text blocks;
    otherwise they are needed at each step and the modulations stay inside their block.
    """
    components = checkpoint.components if isinstance(checkpoint, Checkpoint) else checkpoint
    found: dict[str, tuple[str, Kind, int, list[TensorEntry]]] = {}
    for component in components.values():
        for entry in component.tensors.values():
            name, kind, index = _belongs(component.name, entry.name, hoisted)
            found.setdefault(name, (component.name, kind, index, []))[3].append(entry)
    units = [_unit(name, *parts, dtype, hoisted) for name, parts in found.items()]
    return {unit.name: unit for unit in sorted(units, key=_order)}


def describe(
    checkpoint: Checkpoint | Mapping[str, Component],
    dtype: Dtype = "bfloat16",
    *,
    name: str = "",
    hoisted: bool = True,
) -> ModelDescription:
    """The description a plan is made from. ``name`` is needed only where no Checkpoint brings one."""
    components = checkpoint.components if isinstance(checkpoint, Checkpoint) else checkpoint
    config = components["transformer"].config
    text = _text_config(components["text_encoder"].config if "text_encoder" in components else {})
    dim, ff = int(config["model_dim"]), int(config["ff_dim"])
    return ModelDescription(
        name=checkpoint.name if isinstance(checkpoint, Checkpoint) else name,
        units=tuple(units_of(components, dtype, hoisted=hoisted).values()),
        dtype=dtype,
        model_dim=dim,
        ff_dim=ff,
        audio_dim=int(config.get("model_dim_a") or dim),
        audio_ff_dim=int(config.get("ff_dim_a") or ff),
        head_dim=sum(config["axes_dims"]),
        text_blocks=int(config["num_text_blocks"]),
        text_dim=int(config["in_text_dim"]),
        text_layers_kv_bytes=_kv_bytes(text),
        vae_channels=_decoder_channels(components["vae"].config if "vae" in components else {}),
    )


def _belongs(component: str, tensor: str, hoisted: bool) -> tuple[str, Kind, int]:
    """Name, kind and index of the unit that a tensor is part of."""
    if component == "transformer":
        if match := _BLOCK.match(tensor):
            unit, index = f"transformer.visual_transformer_blocks.{match[1]}", int(match[1])
            if hoisted and _MODULATION.search(match[2]):
                return f"{unit}.modulations", "modulations", index
            return unit, "block", index
        if match := _TEXT_BLOCK.match(tensor):
            return f"transformer.{match[1]}", "text_block", int(match[1].rpartition(".")[2])
        return "transformer.rest", "rest", -1
    if component == "text_encoder":
        if "visual." in tensor:
            return "text_encoder.vision", "vision", -1
        if match := _LAYER.search(tensor):
            return f"text_encoder.layers.{match[1]}", "layer", int(match[1])
        if "lm_head" in tensor:
            return "text_encoder.head", "head", -1
        return "text_encoder.rest", "rest", -1
    return component, "whole", -1


def _unit(
    name: str, component: str, kind: Kind, index: int, entries: list[TensorEntry], dtype: Dtype, hoisted: bool
) -> Unit:
    entries.sort(key=lambda t: (str(t.file), t.offset_bytes))
    casts = [_cast(component, entry, dtype) for entry in entries]
    per_step = component == "transformer" and (kind in ("block", "rest") or not hoisted)
    return Unit(
        name=name,
        component=component,
        kind=kind,
        needed="step" if per_step else "clip",
        index=index,
        tensors=tuple(entries),
        stored_bytes=sum(t.size_bytes for t in entries),
        device_bytes=sum(round_up(size, ALIGNMENT_BYTES) for size, _ in casts),
        slot_bytes=sum(
            round_up(entry.size_bytes, ALIGNMENT_BYTES) + (round_up(size, ALIGNMENT_BYTES) if changes else 0)
            for entry, (size, changes) in zip(entries, casts, strict=True)
        ),
    )


def _cast(component: str, entry: TensorEntry, dtype: Dtype) -> tuple[int, bool]:
    """Bytes of a tensor on the device, and whether its dtype changes on the way."""
    if entry.dtype not in ("F64", "F32", "BF16", "F16"):
        return entry.size_bytes, False
    target = "F32" if stays_float32(component, entry.name) else _RUN_NAME[dtype]
    return math.prod(entry.shape) * ITEM_BYTES[target], entry.dtype != target


_COMPONENT_ORDER = ("text_encoder", "text_encoder_2", "transformer", "vae", "audio_vae", "vocoder")
_KIND_ORDER: tuple[Kind, ...] = ("rest", "vision", "layer", "text_block", "modulations", "block", "head", "whole")


def _order(unit: Unit) -> tuple[int, str, int, str, int]:
    """Order of use: parts as the road of a clip meets them, a block right behind its modulations."""
    known = unit.component in _COMPONENT_ORDER
    part = _COMPONENT_ORDER.index(unit.component) if known else len(_COMPONENT_ORDER)
    in_block = unit.kind in ("modulations", "block")
    group = _KIND_ORDER.index("modulations" if in_block else unit.kind)
    stack = "audio" if unit.name.startswith("transformer.audio_text") else ""  # diffusers runs the video list first
    return part, unit.component, group, stack, unit.index * 2 + (unit.kind == "block")


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config", config)
    return inner if isinstance(inner, Mapping) else {}


def _kv_bytes(config: Mapping[str, Any]) -> int:
    heads = int(config.get("num_attention_heads", 28))
    width = int(config.get("hidden_size", 3584)) // heads
    return 2 * 2 * width * int(config.get("num_key_value_heads", 4)) * int(config.get("num_hidden_layers", 28))


def _decoder_channels(config: Mapping[str, Any]) -> int:
    """The last stage of the decoder works on the second width before it narrows to the first: 256 in the release."""
    return int(config.get("block_out_channels", (128, 256))[1])


def total_bytes(units: Iterable[Unit]) -> int:
    """Stored bytes of some units."""
    return sum(unit.stored_bytes for unit in units)


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
