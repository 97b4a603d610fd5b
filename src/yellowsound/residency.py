"""Residency: plans a request on this machine and keeps the models that the plan calls for.

The plan comes first; what runs is what was planned. A request of another geometry keeps the homes there are if they
suit it, otherwise the models are laid out anew, which is told as an event.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.events import Replanned
from yellowsound.memory.claims import CONTEXT_BYTES
from yellowsound.memory.geometry import Geometry, Offload
from yellowsound.memory.lora import Lora, lora_bytes
from yellowsound.memory.machine import Machine
from yellowsound.memory.peaks import Peaks, PeakStage, load_peaks, record_peak
from yellowsound.memory.pinned import hides_its_pin_limit
from yellowsound.memory.plan import Plan, plan
from yellowsound.memory.probe import this_machine
from yellowsound.memory.resident import Models
from yellowsound.memory.speeds import recall_speeds
from yellowsound.memory.units import ModelDescription, describe
from yellowsound.recipe import Recipe
from yellowsound.request import ClipRequest, RequestError
from yellowsound.run import Run

DTYPE_WORDS: dict[torch.dtype, Any] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows: bytes of each memory, the word for offloading, LoRA files to merge."""

    vram_bytes: int | None = None
    ram_bytes: int | None = None
    offload: Offload = "auto"
    loras: Sequence[Lora] = ()


@dataclass(slots=True)
class Residency:
    """The machine as it was before anything was loaded, and what is loaded on it.

    peaks: as known when the process began; what its own clips measure is for the next one, since weights would have to
    move for it. lora_bytes: what merging the LoRA files holds on the device.
    Raises LoraError for files that do not fit.
    """

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    recipe: Recipe
    limits: Limits
    machine: Machine = field(init=False)
    model: ModelDescription = field(init=False)
    peaks: Peaks = field(init=False)
    lora_bytes: int = field(init=False)
    models: Models = field(init=False)
    current: Plan | None = None

    def __post_init__(self) -> None:
        found = this_machine(index=self.device.index or 0, cpu=self.device.type == "cpu")
        self.machine = recall_speeds(found)
        self.peaks = load_peaks(card=self.machine.name)
        if self.device.type == "cuda" and self.limits.vram_bytes is not None:
            _cap_allocator(self.device, self.limits.vram_bytes)
        self.model = describe(self.checkpoint, DTYPE_WORDS[self.dtype])
        self.lora_bytes = lora_bytes(self.limits.loras, self.checkpoint, self.dtype, self.device)
        self.models = Models(self.checkpoint, self.device, self.dtype)

    def plan(self, request: ClipRequest) -> Plan:
        """The plan for a resolved request. Raises PlanError where it cannot fit."""
        return plan(
            self.machine,
            self.model,
            Geometry.of(request, DTYPE_WORDS[self.dtype]),
            self.recipe,
            vram_bytes=self.limits.vram_bytes,
            ram_bytes=self.limits.ram_bytes,
            offload=self.limits.offload,
            expand=request.expand_prompt,
            peaks=self.peaks,
            lora_bytes=self.lora_bytes,
        )

    def settle(self, request: ClipRequest, run: Run) -> Plan:
        """Plan, and have the models that the plan calls for; they are loaded when the stages ask for them."""
        wanted, before = self.plan(request), self.current
        self.current = wanted
        if before is None:
            self._lay_out(wanted, run)
        elif not _same_homes(before, wanted):
            run.emit(Replanned(reason=_reason(before, wanted)))
            self._lay_out(wanted, run)
        self.models.follow(wanted, run.warn)
        return wanted

    def _lay_out(self, wanted: Plan, run: Run) -> None:
        """On a processor that holds everything the libraries' own loaders serve, anywhere else the conveyor."""
        holds_all = self.device.type == "cpu" and wanted.is_resident and self.limits.vram_bytes is None
        if holds_all and not self.limits.loras:
            if type(self.models) is not Models:
                self.models.drop()
                self.models = Models(self.checkpoint, self.device, self.dtype)
            return
        from yellowsound.memory.streamed import StreamedModels

        self.models.drop()
        self.models = StreamedModels(self.checkpoint, self.device, self.dtype, wanted, self.limits.loras, run.warn)

    def noting_peak(self, stage: PeakStage, request: ClipRequest, run: Run) -> AbstractContextManager[None]:
        """Keep what a stage really takes on this card, so that the next plan need not compute it."""
        geometry = Geometry.of(request, DTYPE_WORDS[self.dtype])
        return run.noting_peak(partial(record_peak, stage, self.model, geometry, card=self.machine.name))


def _same_homes(a: Plan, b: Plan) -> bool:
    keys = ("homes", "slots", "slot_bytes", "text_slots", "text_slot_bytes", "ring_bytes", "results_home")
    return all(getattr(a, key) == getattr(b, key) for key in keys)


def _reason(before: Plan, after: Plan) -> str:
    return (
        f"{after.geometry.key} needs other homes than {before.geometry.key}: the weights are laid out anew, "
        f"a step should take {after.step_seconds:.1f} s"
    )


def pick_device(device: str) -> torch.device:
    """``auto`` is the first GPU, else the CPU; anything else is torch's own name. Raises RequestError."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError:
        raise RequestError("device", device, "is no device name", "auto, cpu, cuda or cuda:1") from None
    if where.type not in ("cpu", "cuda"):
        raise RequestError("device", device, "is no device this engine runs on", "auto, cpu or cuda")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise RequestError("device", device, f"this machine has {torch.cuda.device_count()} CUDA devices", "cpu")
    if where.type == "cuda":
        _let_segments_grow()
    return where


def _let_segments_grow() -> None:
    """Tell torch's allocator, before it starts, to grow its segments instead of keeping many of fixed size.

    Without it 2.7 GiB of a card capped at 32 GB lay reserved but unused, and a step that fits ran out of memory. What
    the user set stays; WSL2 reports wrong sizes with it.
    """
    said = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ)
    if not said and not hides_its_pin_limit():
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def _cap_allocator(device: torch.device, vram_bytes: int) -> None:
    """Make a cap hold for what torch keeps for later, too: above it freed memory goes back to the driver first."""
    index = device.index or 0
    total = torch.cuda.get_device_properties(index).total_memory
    allowed = max(vram_bytes - CONTEXT_BYTES["cuda"], 0)
    torch.cuda.set_per_process_memory_fraction(min(allowed / total, 1.0), index)


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU. Raises RequestError."""
    names = {"auto": torch.bfloat16 if device.type == "cuda" else torch.float32}
    names |= {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp32": torch.float32, "float32": torch.float32}
    if dtype not in names:
        raise RequestError("dtype", dtype, "is no dtype this engine runs", "auto, bfloat16 or float32")
    return names[dtype]
