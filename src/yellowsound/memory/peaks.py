"""Activation peaks: what a stage needs on the device besides weights, measured where known, else computed.

Measured values are data under a geometry key (frames, height, width, tail frame): those shipped in
presets/peaks.json, and those that this machine recorded on first use. Formulas are first estimates and say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from yellowsound.memory.geometry import Geometry
from yellowsound.memory.machine import Basis
from yellowsound.memory.records import read_records, record_file, write_records
from yellowsound.memory.units import ITEM_BYTES, ModelDescription
from yellowsound.memory.work import TEMPLATE_TOKENS, TILE_PIXELS

PeakStage = Literal["denoise", "text", "image", "decode_whole", "decode_tiled", "audio"]

FILE = "peaks.json"
SHIPPED = Path(__file__).parent.parent / "presets" / FILE
EAGER_BLOCK_TENSORS = 18  # one fused block, eager: 6.9 GiB measured at 411 MB a (tokens x width) tensor
BRANCH_TENSORS = 2  # a second branch keeps its own stream and what is recorded for it
DECODER_TENSORS = 6.65  # alive at full size, in the widest stretch of the decoder: 24.1 GB measured at 864x480, whole
TILE_FRAMES = 17
TILES_ALIVE = 4  # decoded time tiles: the one before, this one, and what blending makes of them
MASK_ITEM_BYTES = 6  # the decoder's dense causal mask: float32 first, then the run dtype
VOCODER_BYTES_PER_SAMPLE = 24 * 40 * 2  # tensors of its last stage, at 122 M weights
VOCODER_BYTES = 244_400_000


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured peaks in bytes by key; ``recorded`` came from this machine and goes before ``shipped``."""

    shipped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    recorded: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def find(self, stage: PeakStage, model: ModelDescription, geometry: Geometry) -> tuple[int, Basis]:
        """Bytes of a stage beyond weights and slots, and whether they were measured."""
        key = peak_key(stage, model, geometry)
        for known in (self.recorded, self.shipped):
            if key in known:
                return known[key], "measured"
        return computed_peak(stage, model, geometry), "computed"

    def without_records(self) -> Peaks:
        """Only what every machine knows: for choices that must not change once something was measured here."""
        return Peaks(self.shipped)


def peak_key(stage: PeakStage, model: ModelDescription, geometry: Geometry) -> str:
    """``denoise/4096/bfloat16/121x480x864+tail/1``: stage, width, dtype, geometry, branches."""
    return f"{stage}/{model.model_dim}/{geometry.dtype}/{geometry.key}/{geometry.branches}"


def computed_peak(stage: PeakStage, model: ModelDescription, geometry: Geometry) -> int:
    """First estimate of a stage's peak in bytes, from tensor sizes."""
    item = ITEM_BYTES[geometry.dtype]
    if stage == "denoise":
        tensors = EAGER_BLOCK_TENSORS + BRANCH_TENSORS * (geometry.branches - 1)
        return tensors * geometry.visual_tokens * model.model_dim * item
    if stage == "text":
        rows = (geometry.text_tokens + TEMPLATE_TOKENS) * geometry.branches
        return rows * model.text_dim * item * 24
    if stage == "audio":
        size = sum(unit.device_bytes for unit in model.of("vocoder"))
        return int(geometry.audio_tokens * 1024 * VOCODER_BYTES_PER_SAMPLE * min(size / VOCODER_BYTES, item / 2))
    if stage == "image":
        return _video_vae(model, 1, geometry.height, geometry.width, item)
    tile = (geometry.height, geometry.width) if stage == "decode_whole" else (TILE_PIXELS, TILE_PIXELS)
    frames = min(geometry.frames, TILE_FRAMES)
    decoded = TILES_ALIVE * 3 * frames * geometry.height * geometry.width * item
    height, width = (min(side, limit) for side, limit in zip((geometry.height, geometry.width), tile, strict=True))
    return _video_vae(model, frames, height, width, item) + decoded


def _video_vae(model: ModelDescription, frames: int, height: int, width: int, item: int) -> int:
    """One tile: the widest convolutions at full size, or the middle block's mask, whichever is larger."""
    convolutions = int(model.vae_channels * DECODER_TENSORS * frames * height * width * item)
    tokens = ((frames - 1) // 4 + 1) * (height // 8) * (width // 8)
    return max(convolutions, tokens**2 * MASK_ITEM_BYTES * item // 2)


def load_peaks(folder: Path | None = None, card: str = "") -> Peaks:
    """Shipped peaks, and those recorded for ``card`` under ``folder`` (default: the user's cache).

    An unreadable record is left out: it is a cache, and the next run writes it again.
    """
    recorded = MappingProxyType(_peaks(read_records(record_file(FILE, folder)).get(card, {})))
    shipped = {key: int(row["bytes"]) for key, row in json.loads(SHIPPED.read_text()).items()}
    return Peaks(MappingProxyType(shipped), recorded)


def record_peak(
    stage: PeakStage,
    model: ModelDescription,
    geometry: Geometry,
    peak_bytes: int,
    *,
    card: str,
    folder: Path | None = None,
) -> bool:
    """Keep a measured peak for ``card`` if it exceeds the one known or none is. True if it did."""
    path = record_file(FILE, folder)
    records = read_records(path)
    key = peak_key(stage, model, geometry)
    known = _peaks(records.get(card, {})).get(key, 0)
    if known >= peak_bytes:
        return False
    records.setdefault(card, {})[key] = peak_bytes
    write_records(path, records)
    return True


def _peaks(row: Mapping[str, object]) -> dict[str, int]:
    """The rows of one card that are what they should be."""
    return {key: value for key, value in row.items() if isinstance(value, int) and value > 0}
