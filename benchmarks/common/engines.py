"""Engines: a streamed transformer by plan, and the same one with every block bound to one resident block's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common.caps import charged_bytes
from common.facts import meminfo
from common.results import say
from common.workload import Shape, load_scheduler, make_latents, make_texts
from yellowsound.checkpoint import Checkpoint
from yellowsound.memory import budget
from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.driver import Driver
from yellowsound.memory.geometry import Offload
from yellowsound.memory.hoist import Store
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.machine import Machine
from yellowsound.memory.peaks import load_peaks
from yellowsound.memory.placement import Counts, arrange
from yellowsound.memory.plan import Plan, plan
from yellowsound.memory.probe import this_machine
from yellowsound.memory.speeds import with_measured
from yellowsound.memory.stack import close_streamed, driver_of
from yellowsound.memory.units import Home, describe, total_bytes, units_of
from yellowsound.memory.visit import Loaded
from yellowsound.stages.latents import Latents
from yellowsound.stages.text import TextEmbeds

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a benchmark runs. ``card_bytes``, ``host_bytes``: hard limits in force, None where there is none."""

    device: torch.device
    dtype: torch.dtype
    text_tokens: int
    card_bytes: int | None = None
    host_bytes: int | None = None
    group: Path | None = None
    plan_host_bytes: int | None = None  # the same as host_bytes where no group could be made: the plan keeps to it
    disk_bytes_per_second: float | None = None
    link_bytes_per_second: float | None = None

    def machine(self) -> Machine:
        """This machine as the caps leave it, with what was measured of disk and link."""
        found = this_machine(disk_bytes_per_second=self.disk_bytes_per_second, cpu=self.device.type == "cpu")
        found = with_measured(found, link=self.link_bytes_per_second)
        if self.card_bytes is not None:
            found = replace(found, vram_total_bytes=self.card_bytes, vram_free_bytes=self.card_bytes)
        if self.host_bytes is not None:
            left = self.host_bytes - (charged_bytes(self.group) or 0)
            found = replace(found, ram_total_bytes=self.host_bytes, ram_available_bytes=left)
        return found

    def trust_the_group(self) -> str | None:
        """Where MemAvailable is less than the group allows (a virtual machine that grows on use), go by the group.

        Returns a sentence for the row, None if nothing was changed.
        """
        if self.group is None or self.host_bytes is None or meminfo("MemAvailable") > self.host_bytes * 1.05:
            return None
        shown = f"MemAvailable {meminfo('MemAvailable') / 1e9:.1f} GB"
        budget._meminfo = lambda root: (2 * self.host_bytes, 2 * self.host_bytes)  # type: ignore[operator]
        note = f"{shown} was ignored: the machine's memory grows on use, the cgroup alone decides"
        say(note)
        return note


@dataclass(slots=True)
class Streamed:
    """One streamed transformer with its plan, and what its runs are given."""

    checkpoint: Checkpoint
    place: Place
    plan: Plan
    model: Any
    scheduler: Any
    conveyor: Watched

    @property
    def driver(self) -> Driver:
        found = driver_of(self.model)
        assert found is not None
        return found

    def latents(self, shape: Shape) -> Latents:
        return make_latents(self.checkpoint, shape, self.place.device, self.place.dtype)

    def texts(self, branches: int = 1) -> list[TextEmbeds]:
        place = self.place
        return make_texts(self.checkpoint, branches, place.text_tokens, place.device, place.dtype)

    def stand_still(self) -> None:
        """Arm A: from now on nothing moves, every block has the weights of one that is on the device."""
        self.driver.conveyor = Still(self.conveyor)  # type: ignore[assignment]

    def stream(self) -> None:
        """Arm B: blocks come as the plan says."""
        self.driver.conveyor = self.conveyor  # type: ignore[assignment]

    def keep_results(self, home: Home) -> None:
        """Where hoisted results live from now on; the next run makes them anew."""
        self.driver.forget()
        self.driver._store = Store(self.driver._device, on_device=home is Home.VRAM)

    def close(self) -> None:
        self.stream()
        close_streamed(self.model)
        self.model = None


class Watched:
    """The conveyor, with the tensors of each unit's latest visit remembered."""

    def __init__(self, conveyor: Conveyor) -> None:
        self.inner, self.latest = conveyor, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def acquire(self, check: Callable[[], None] = lambda: None) -> Loaded:
        loaded = self.inner.acquire(check)
        self.latest[loaded.name] = loaded.tensors
        return loaded

    def resident_block(self) -> Any:
        """Tensors of a block that lives on the device; where none does, of the one that passed last."""
        blocks = [name for name in self.latest if name.rpartition(".")[2].isdigit() and "visual" in name]
        homes = self.inner.homes
        return self.latest[next((name for name in blocks if homes[name] == "vram"), blocks[-1])]


class Still:
    """Stands in for a conveyor: no copy, no wait, no read; always the same tensors."""

    def __init__(self, conveyor: Watched) -> None:
        self.counts, self.homes = conveyor.counts, conveyor.homes
        self._tensors = conveyor.resident_block()
        self._lap: list[str] = []

    def begin_lap(self, order: Sequence[str], following: Sequence[str] = ()) -> None:
        self._lap = list(order)

    def acquire(self, check: Callable[[], None] = lambda: None) -> Loaded:
        return Loaded(self._lap.pop(0), self._tensors)

    def release(self) -> None:
        return None

    def abort(self) -> None:
        self._lap = []

    def take_turned(self) -> list[str]:
        return []

    def demote(self, names: Sequence[str]) -> int:
        return 0


def make_plan(
    checkpoint: Checkpoint,
    place: Place,
    shape: Shape,
    steps: int,
    *,
    offload: Offload = "auto",
    vram_bytes: int | None = None,
    ram_bytes: int | None = None,
) -> Plan:
    """The plan for a shape on this machine, from shipped peaks only. Raises PlanError."""
    dtype = DTYPES[place.dtype]
    geometry = shape.geometry(steps, dtype, place.text_tokens)
    ram_bytes = ram_bytes or place.plan_host_bytes
    return plan(
        place.machine(), describe(checkpoint, dtype), geometry, vram_bytes=vram_bytes, ram_bytes=ram_bytes,  # type: ignore[arg-type]
        offload=offload, peaks=load_peaks(card="none"),
    )  # fmt: skip


def with_homes(planned: Plan, vram: int, ram: int, disk: int, slots: int = 2) -> Plan:
    """The same plan with the blocks' homes given by hand, everything needed once a clip on disk."""
    blocks = sorted(
        (n for n in planned.homes if n.startswith("transformer.visual") and n.rpartition(".")[2].isdigit()),
        key=lambda name: int(name.rpartition(".")[2]),
    )
    homes = {name: home if name.endswith(".rest") else Home.DISK for name, home in planned.homes.items()}
    homes |= dict(zip(blocks, arrange(Counts(vram, ram, disk)), strict=True))
    return replace(planned, homes=homes, slots=slots)


def load_streamed(checkpoint: Checkpoint, place: Place, planned: Plan) -> Streamed:
    """Everything ready for the first lap; blocks are read when it runs."""
    model = load_streamed_transformer(checkpoint, planned, place.device, place.dtype, report=say)
    driver = driver_of(model)
    assert driver is not None
    watched = Watched(driver.conveyor)
    driver.conveyor = watched  # type: ignore[assignment]
    driver.seams.on_event = lambda event: say(f"event: {event}")
    return Streamed(checkpoint, place, planned, model, load_scheduler(checkpoint), watched)


def expected_seconds(checkpoint: Checkpoint, planned: Plan) -> tuple[float, float]:
    """A cold first step and a later one at the measured speeds, not derated: for budgets of time."""
    machine = planned.machine
    blocks = sum(blocks_by_home(planned).values())
    compute = blocks * planned.block_seconds
    moving = {home: size for home, size in planned.step_bytes.items() if home is not Home.VRAM}
    later = max(
        compute, moving[Home.DISK] / machine.disk_bytes_per_second, sum(moving.values()) / machine.link_bytes_per_second
    )  # fmt: skip
    stored = total_bytes(unit for unit in units_of(checkpoint).values() if unit.component == "transformer")
    return max(compute, stored / machine.disk_bytes_per_second), later


def plan_summary(planned: Plan) -> dict[str, Any]:
    """What of a plan a row keeps: homes by class, slots, what it expected."""
    denoise = next(stage for stage in planned.stages if stage.stage == "denoise")
    return {
        "geometry": planned.geometry.key, "branches": planned.geometry.branches, "steps": planned.geometry.steps,
        "offload": planned.offload, "classes": [
            {"label": c.label, "count": c.count, "bytes": c.bytes} for c in planned.classes
        ],
        "blocks_by_home": blocks_by_home(planned), "slots": planned.slots, "slot_bytes": planned.slot_bytes,
        "ring_bytes": planned.ring_bytes, "chunk_bytes": planned.chunk_bytes, "pinned": planned.pinned,
        "vram_budget_bytes": planned.vram_budget_bytes, "ram_budget_bytes": planned.ram_budget_bytes,
        "denoise_vram_bytes": denoise.vram_bytes, "denoise_ram_bytes": denoise.ram_bytes,
        "step_bytes": {str(home): size for home, size in planned.step_bytes.items()},
        "step_seconds": planned.step_seconds, "step_bound": planned.step_bound,
        "first_step_seconds": planned.first_step_seconds, "block_seconds": planned.block_seconds,
        "basis": planned.basis, "disk_bytes_per_second": planned.machine.disk_bytes_per_second,
        "link_bytes_per_second": planned.machine.link_bytes_per_second,
    }  # fmt: skip


def blocks_by_home(planned: Plan) -> dict[str, int]:
    """How many fused blocks live in each home."""
    homes = [
        home
        for name, home in planned.homes.items()
        if name.startswith("transformer.visual") and name.rpartition(".")[2].isdigit()
    ]
    return {str(home): homes.count(home) for home in Home}
