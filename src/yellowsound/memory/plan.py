"""Plan: a home for every unit, the peak of every stage and the time to expect, before anything is loaded.

Pure: the same machine, description, geometry, recipe and caps give the same plan. No torch, no file, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from yellowsound.memory.machine import Basis, Machine
from yellowsound.memory.units import Dtype, Home

Offload = Literal["auto", "none", "module", "block"]
Decode = Literal["whole", "tiled"]
StageName = Literal["expand", "text", "image", "denoise", "decode", "audio", "mux"]


class PlanError(ValueError):
    """A machine that cannot run this: one sentence with what does not fit, by how many bytes, and a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What of a request memory and time depend on. ``tail``: a picture adds one clean latent frame at the end.

    branches: 1, or 2 with guidance. Sizes in pixels, frames 4k+1.
    """

    frames: int
    height: int
    width: int
    tail: bool = False
    branches: int = 1
    steps: int = 10
    dtype: Dtype = "bfloat16"
    frame_rate: float = 24.0
    text_tokens: int = 1024

    @property
    def latent_frames(self) -> int:
        return (self.frames - 1) // 4 + 1

    @property
    def visual_tokens(self) -> int:
        """Tokens of the picture, the tail frame included: 50,220 for 864x480x121."""
        return (self.latent_frames + self.tail) * (self.height // 16) * (self.width // 16)

    @property
    def audio_tokens(self) -> int:
        return math.ceil(((self.latent_frames - 1) * 4 + 1) / self.frame_rate * 44_100 / 1024)

    @property
    def key(self) -> str:
        """The key that peaks are kept under, e.g. ``121x480x864`` or ``121x480x864+tail``."""
        return f"{self.frames}x{self.height}x{self.width}" + ("+tail" if self.tail else "")


@dataclass(frozen=True, slots=True)
class StagePeak:
    """The most that a stage holds on the device and in host memory, homes included, and the seconds it should take.

    seconds: of a warm clip with a new prompt; first_seconds: of the first clip, when all comes from disk.
    """

    stage: StageName
    vram_bytes: int
    ram_bytes: int
    seconds: float
    first_seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class UnitClass:
    """A row of the printed table: how the units of one kind are spread over the homes. Counts, and stored bytes."""

    label: str
    needed: Literal["step", "clip"]
    count: int
    bytes: int
    vram: int
    ram: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Where the text encoder's layers are while the prompt is expanded, and what a token costs."""

    layers_in_vram: int
    layers_in_ram: int
    seconds_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run. ``homes`` names every unit of the checkpoint; the rest says what it costs.

    slots: device slots of slot_bytes for the transformer's streamed units; text_slots the same for the text encoder's
    layers, alive only while a prompt is encoded. ring_bytes: pinned staging in chunks of chunk_bytes.
    pinned: whether RAM homes are page-locked; otherwise they are ordinary memory copied through the ring.
    resident_bytes: on the device at all times while denoising, besides slots and VRAM homes.
    results_bytes: hoisted results of all steps and branches, kept in results_home.
    step_bytes, clip_bytes: bytes that move from each home in a step after lap one, and once in a warm clip.
    basis: ``measured`` only if the block time came from such a card; every other time is computed.
    """

    machine: Machine
    checkpoint: str
    geometry: Geometry
    recipe: str
    offload: Offload
    homes: Mapping[str, Home]
    classes: tuple[UnitClass, ...]
    slots: int
    slot_bytes: int
    text_slots: int
    text_slot_bytes: int
    ring_bytes: int
    chunk_bytes: int
    pinned: bool
    resident_bytes: int
    results_bytes: int
    results_home: Home
    stages: tuple[StagePeak, ...]
    vae_decode: Decode
    vram_budget_bytes: int
    ram_budget_bytes: int
    step_bytes: Mapping[Home, int]
    clip_bytes: Mapping[Home, int]
    block_seconds: float
    step_seconds: float
    first_step_seconds: float
    first_clip_seconds: float
    warm_clip_seconds: float
    expansion: Expansion | None
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    basis: Basis

    @property
    def vram_peak_bytes(self) -> int:
        return max(stage.vram_bytes for stage in self.stages)

    @property
    def ram_peak_bytes(self) -> int:
        return max(stage.ram_bytes for stage in self.stages)

    @property
    def clips_per_hour(self) -> float:
        return 3600 / self.warm_clip_seconds

    @property
    def is_resident(self) -> bool:
        """Whether nothing moves in a step: every unit of the denoising loop lives on the device."""
        return not any(size for home, size in self.step_bytes.items() if home is not Home.VRAM)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; homes by unit name."""
        values = asdict(self)
        for name in ("homes", "step_bytes", "clip_bytes"):
            values[name] = {str(key): _plain(value) for key, value in values[name].items()}
        return {
            **values,
            "results_home": str(self.results_home),
            "clips_per_hour": self.clips_per_hour,
            "vram_peak_bytes": self.vram_peak_bytes,
            "ram_peak_bytes": self.ram_peak_bytes,
        }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Home) else value
