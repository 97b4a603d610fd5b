"""Timing: the seconds of every lap and stage that follow from a layout. Pure arithmetic.

What streams is paced by its slowest resource (placement.pace). First clip: all from disk, page cache ignored, process
start left out. Warm clip: a later one of the same process, with a prompt that was not seen before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from yellowsound.memory import work
from yellowsound.memory.geometry import Geometry
from yellowsound.memory.layout import Layout
from yellowsound.memory.machine import Machine
from yellowsound.memory.placement import DERATING, Pace, pace
from yellowsound.memory.units import Home, ModelDescription, Unit


@dataclass(frozen=True, slots=True)
class Laps:
    """Pace of the denoising laps: a steady one, lap one of the first clip, lap one of a later clip."""

    block_seconds: float
    steady: Pace
    first: Pace
    warm: Pace

    def denoise_seconds(self, steps: int, first: bool) -> float:
        return (self.first if first else self.warm).seconds + (steps - 1) * self.steady.seconds


def laps(
    machine: Machine,
    model: ModelDescription,
    geometry: Geometry,
    layout: Layout,
    refill: bool = False,
    refill_ram: bool = False,
) -> Laps:
    """Pace of the laps.

    refill, refill_ram: device homes, host homes were given up for prompt expansion and are read again in lap one.
    """
    block = work.block_seconds(model, geometry, machine.rates)
    compute = block * len(model.blocks)
    first_compute = compute + work.hoisting_seconds(model, geometry, machine.rates)
    homes, pinned = layout.homes, layout.pinned
    steady = paced(machine, homes, pinned, model.blocks, compute)
    moving = [unit for unit in model.of("transformer") if unit.kind != "rest"]
    cold = paced(machine, homes, pinned, model.of("transformer"), first_compute, all_from_disk=True)
    warm = paced(machine, homes, pinned, moving, first_compute, refill=refill, refill_ram=refill_ram)
    return Laps(block, steady, cold, warm)


def text_seconds(machine: Machine, model: ModelDescription, geometry: Geometry, layout: Layout, first: bool) -> float:
    """Encoding a new prompt: the layers pass once, whatever the number of branches. A known prompt takes no time."""
    compute = work.text_seconds(model, geometry, machine.rates)
    units = (*model.of("text_encoder", "rest", "layer"), *model.of("text_encoder_2"))
    return paced(machine, layout.homes, layout.pinned, units, compute, all_from_disk=first).seconds


def parts_seconds(machine: Machine, layout: Layout, units: Sequence[Unit], compute: float) -> float:
    """A stage of whole parts: they arrive, then compute. Those with a home were read into it while the loop left the
    disk idle, in the first clip as well."""
    disk = stored_bytes(u for u in units if layout.homes[u.name] is Home.DISK) / machine.disk_bytes_per_second
    link = stored_bytes(u for u in units if layout.homes[u.name] is not Home.VRAM) / machine.link_bytes_per_second
    return compute + max(disk, link) / DERATING


def paced(
    machine: Machine,
    homes: Mapping[str, Home],
    pinned: bool,
    units: Sequence[Unit],
    compute: float,
    *,
    all_from_disk: bool = False,
    refill: bool = False,
    refill_ram: bool = False,
) -> Pace:
    """Pace of one pass over ``units`` from their homes."""
    size = {home: stored_bytes(u for u in units if homes[u.name] is home) for home in Home}
    disk, link = size[Home.DISK], size[Home.DISK] + size[Home.RAM]
    if all_from_disk or refill:
        disk += size[Home.VRAM]
        link += size[Home.VRAM]
    if all_from_disk or refill_ram:
        disk += size[Home.RAM]
    return pace(
        compute,
        disk,
        link,
        machine.disk_bytes_per_second,
        machine.link_bytes_per_second,
        pageable_bytes=0 if pinned or machine.device == "cpu" else size[Home.RAM],
    )


def stored_bytes(units: Iterable[Unit]) -> int:
    return sum(unit.stored_bytes for unit in units)
