"""Plan: a home for every unit, the peak of every stage and the time to expect, before anything is loaded.

Pure: the same machine, description, geometry, recipe and caps give the same plan. No torch, no clock, no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from yellowsound.memory import advice, timing
from yellowsound.memory.claims import CONTEXT_BYTES, Caps, Question
from yellowsound.memory.expansion import Division, Expansion, divide_layers, plan_expansion
from yellowsound.memory.geometry import Decode, Geometry, Offload
from yellowsound.memory.layout import Layout, clip_units, lay_out, slots_worth_trying
from yellowsound.memory.machine import Basis, Machine
from yellowsound.memory.peaks import Peaks
from yellowsound.memory.placement import Bound
from yellowsound.memory.refusal import PlanError
from yellowsound.memory.stage_peaks import StagePeak, stage_peaks
from yellowsound.memory.units import Home, ModelDescription, Need, Unit
from yellowsound.memory.work import basis_of
from yellowsound.recipe import Recipe

__all__ = ["Caps", "Decode", "Expansion", "Geometry", "Offload", "Plan", "PlanError", "StagePeak", "UnitClass", "plan"]


BOUNDLESS = 1 << 60


@dataclass(frozen=True, slots=True)
class UnitClass:
    """A row of the printed table: how the units of one kind are spread over the homes. Counts, and stored bytes."""

    label: str
    needed: Need
    count: int
    bytes: int
    vram: int
    ram: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run. ``homes`` names every unit of the checkpoint; the rest says what it costs.

    slots: device slots of slot_bytes for the transformer's streamed units; text_slots the same for the text encoder's
    layers, alive only while a prompt is encoded. ring_bytes: pinned staging of each of the two conveyors
    (transformer, text encoder), in chunks of chunk_bytes.
    pinned: whether RAM homes are page-locked; otherwise they are ordinary memory copied through the ring.
    vram_budget_bytes, ram_budget_bytes: what may be taken in all, the process and its context included.
    resident_bytes: on the device at all times while denoising, besides slots and VRAM homes.
    results_bytes: hoisted results of all steps and branches, kept in results_home.
    step_bytes, clip_bytes: bytes that move from each home in a step after lap one, and once in a warm clip.
    step_seconds is a steady step's, step_bound what it waits for; first_step_seconds is lap one of the first clip,
    warm_first_step_seconds lap one of a later one. host_needs: installed memory of the whole host to run at all, for a
    loop without disk, for every home; None without a card. basis: ``measured`` if the block time was measured on such a
    card, every other time being computed from it; else ``computed``.
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
    step_bound: Bound
    first_step_seconds: float
    warm_first_step_seconds: float
    first_clip_seconds: float
    warm_clip_seconds: float
    host_needs: tuple[int, int, int] | None
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


def plan(
    machine: Machine,
    model: ModelDescription,
    geometry: Geometry,
    recipe: Recipe | None = None,
    *,
    vram_bytes: int | None = None,
    ram_bytes: int | None = None,
    offload: Offload = "auto",
    expand: bool = False,
    peaks: Peaks | None = None,
    lora_bytes: int = 0,
) -> Plan:
    """Decide where every unit lives and what to expect. Raises PlanError if it cannot fit.

    vram_bytes, ram_bytes: the most that yellowsound may take. offload: ``none`` keeps all parts on the device,
    ``module`` the transformer whole with the other parts by turns, ``block`` streams every block, ``auto`` chooses.
    expand: the prompt is expanded first. peaks: measured activation peaks (peaks.load_peaks); formulas without.
    lora_bytes: what merging LoRA files holds on the device at all times (lora.lora_bytes).
    """
    caps, known, allowed = Caps(vram_bytes, ram_bytes), peaks or Peaks(), recipe or Recipe()
    asked = Question(machine, model, geometry, caps, offload, known, lora_bytes)
    layout, division = _fit(asked, expand)
    expansion = None if division is None else plan_expansion(machine, model, caps, layout, division)
    given_up = expansion is not None and expansion.empties_vram, expansion is not None and expansion.empties_ram
    laps = timing.laps(machine, model, geometry, layout, *given_up)
    roomy = layout
    if machine.device == "cuda":
        unlimited = replace(machine, ram_total_bytes=BOUNDLESS, ram_available_bytes=BOUNDLESS)
        roomy = _best_layout(replace(asked, machine=unlimited, caps=replace(caps, ram_bytes=None)))
    budgets = advice.Budgets.of(model, layout, roomy, expansion)
    stages = stage_peaks(machine, model, geometry, layout, laps, expansion)
    return Plan(
        machine=machine,
        checkpoint=model.name,
        geometry=geometry,
        recipe=allowed.name,
        offload=offload,
        homes=layout.homes,
        classes=classes_of(model, layout.homes),
        slots=layout.device.slots,
        slot_bytes=layout.device.slot_bytes,
        text_slots=layout.text_slots,
        text_slot_bytes=layout.text_slot_bytes,
        ring_bytes=layout.ring.bytes,
        chunk_bytes=layout.ring.chunk_bytes,
        pinned=layout.pinned,
        resident_bytes=layout.claims.resident,
        results_bytes=layout.claims.results,
        results_home=layout.results_home,
        stages=stages,
        vae_decode=layout.decode,
        vram_budget_bytes=layout.device_budget + CONTEXT_BYTES[machine.device],
        ram_budget_bytes=layout.host_budget,
        step_bytes=bytes_by_home([*model.blocks], layout.homes),
        clip_bytes=bytes_by_home(clip_units(model, expand), layout.homes),
        block_seconds=laps.block_seconds,
        step_seconds=laps.steady.seconds,
        step_bound=laps.steady.bound,
        first_step_seconds=laps.first.seconds,
        warm_first_step_seconds=laps.warm.seconds,
        first_clip_seconds=sum(stage.first_seconds for stage in stages),
        warm_clip_seconds=sum(stage.seconds for stage in stages),
        host_needs=advice.host_needs(machine, budgets) if machine.device == "cuda" else None,
        expansion=expansion,
        warnings=advice.warnings(machine, model, geometry, layout, known),
        advice=advice.faster(machine, model, caps, layout, laps, budgets),
        basis=basis_of(model, machine.rates),
    )


def _fit(asked: Question, expand: bool) -> tuple[Layout, Division | None]:
    """The layout, and the division for prompt expansion. Of two refusals the larger is told, VRAM first: on it
    depends what the host must hold."""
    refusals, layout, division = [], None, None
    try:
        layout = _best_layout(asked)
    except PlanError as error:
        refusals.append(error)
    try:
        division = divide_layers(asked) if expand else None
    except PlanError as error:
        refusals.append(error)
    if refusals:
        raise max(refusals, key=lambda error: (error.memory == "VRAM", error.missing_bytes))
    assert layout is not None
    return layout, division


def _best_layout(asked: Question) -> Layout:
    """The most slots that cost no step time and put no block on disk: so more memory never slows a step."""

    def pace(layout: Layout) -> float:
        return timing.laps(asked.machine, asked.model, asked.geometry, layout).steady.seconds

    first, *more = (lay_out(asked, slots) for slots in slots_worth_trying(asked.machine, asked.offload))
    least = pace(first)
    for layout in more:
        same = pace(layout) <= least
        first = layout if same and layout.counts.disk <= first.counts.disk else first
    return first


_LABELS = {
    ("transformer", "block"): "fused blocks",
    ("transformer", "rest"): "embeddings and heads",
    ("transformer", "modulations"): "modulations",
    ("transformer", "text_block"): "text blocks",
    ("text_encoder", "layer"): "text encoder layers",
    ("text_encoder", "rest"): "text encoder embedding",
    ("text_encoder", "vision"): "text encoder vision (expansion)",
    ("text_encoder", "head"): "text encoder head (expansion)",
}


def classes_of(model: ModelDescription, homes: Mapping[str, Home]) -> tuple[UnitClass, ...]:
    """Rows of the table, in order of use."""
    groups: dict[str, list[Unit]] = {}
    for unit in model.units:
        groups.setdefault(_LABELS.get((unit.component, unit.kind), unit.component), []).append(unit)
    rows = []
    for label, units in groups.items():
        counts = {home: sum(homes[u.name] is home for u in units) for home in Home}
        size = timing.stored_bytes(units)
        rows.append(UnitClass(label, units[0].needed, len(units), size, *(counts[home] for home in Home)))
    return tuple(rows)


def bytes_by_home(units: Sequence[Unit], homes: Mapping[str, Home]) -> dict[Home, int]:
    """Stored bytes of some units by the home they come from."""
    return {home: timing.stored_bytes(u for u in units if homes[u.name] is home) for home in Home}
