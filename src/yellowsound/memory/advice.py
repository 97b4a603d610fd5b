"""Advice: what a plan warns of, and what would make it faster, in sentences with numbers."""

from __future__ import annotations

from dataclasses import dataclass

from yellowsound.memory.budget import SYSTEM_BYTES, format_bytes, format_need, more_memory
from yellowsound.memory.claims import Caps
from yellowsound.memory.expansion import Expansion
from yellowsound.memory.geometry import Geometry
from yellowsound.memory.layout import Layout, clip_units
from yellowsound.memory.machine import Machine
from yellowsound.memory.peaks import Peaks, PeakStage
from yellowsound.memory.placement import DERATING
from yellowsound.memory.refusal import more_host
from yellowsound.memory.timing import Laps, stored_bytes
from yellowsound.memory.units import Home, ModelDescription
from yellowsound.memory.work import basis_of


@dataclass(frozen=True, slots=True)
class Budgets:
    """Host memory that a worker must be able to plan with: to run at all, for a loop without disk, for every home."""

    least: int
    loop: int
    everything: int

    @classmethod
    def of(cls, model: ModelDescription, layout: Layout, roomy: Layout, expansion: Expansion | None) -> Budgets:
        """roomy: the layout of the same card in a host without limits, which may stream through another slot."""
        base = layout.claims.host + layout.ring.bytes
        expanding = expansion.ram_bytes if expansion else 0
        block = max(unit.ram_bytes for unit in model.blocks)
        loop, streamed = (block * (found.counts.total - found.counts.vram) for found in (layout, roomy))
        waiting = clip_units(model, expand=False)[len(roomy.device.clip_units) :]
        homes = streamed + sum(unit.ram_bytes for unit in waiting)
        return cls(base + expanding, base + max(loop, expanding), base + homes + expanding)


def host_needs(machine: Machine, budgets: Budgets) -> tuple[int, int, int]:
    """Installed memory of the whole host for each of the budgets: the system, the reserve and every worker included."""

    def installed(budget: int) -> int:
        return SYSTEM_BYTES + machine.workers * more_memory(budget, SYSTEM_BYTES // machine.workers, 0)

    return installed(budgets.least), installed(budgets.loop), installed(budgets.everything)


def warnings(
    machine: Machine, model: ModelDescription, geometry: Geometry, layout: Layout, peaks: Peaks
) -> tuple[str, ...]:
    """What the numbers rest on, where that is less than measured, and what is slower than it need be."""
    notes = list(machine.notes)
    if machine.rates.basis == "computed":
        notes.append(f"no block time was measured on {machine.name}: every time is computed from counted work")
    elif basis_of(model, machine.rates) == "computed":
        notes.append(f"no block of {model.name} was measured on {machine.name}: times are scaled from one of Pro")
    stages: list[PeakStage] = ["text", "denoise", "decode_whole" if layout.decode == "whole" else "decode_tiled"]
    stages += ["image"] if geometry.tail else []
    counted = [stage.partition("_")[0] for stage in stages if peaks.find(stage, model, geometry)[1] == "computed"]
    if counted:
        where = f"activation peaks at {geometry.key} ({', '.join(counted)})"
        notes.append(f"{where} are computed, not measured; they are measured on first use")
    if machine.device == "cuda" and not layout.pinned:
        notes.append("page-locked memory is limited here: RAM homes stay pageable and pass a pinned ring")
    if machine.workers > 1:
        notes.append(f"{machine.workers} workers share this host: memory, disk and link are one worker's share")
    if layout.counts.disk:
        read = stored_bytes(u for u in model.blocks if layout.homes[u.name] is Home.DISK)
        notes.append(f"{layout.counts.disk} blocks ({format_bytes(read)}) are read from disk at every step")
    return tuple(notes)


def faster(
    machine: Machine, model: ModelDescription, caps: Caps, layout: Layout, laps: Laps, budgets: Budgets
) -> tuple[str, ...]:
    """What would shorten a clip, the largest effect first; empty hope is left out."""
    tips = []
    steady = laps.steady
    if steady.bound == "disk":
        loop = layout.host_budget - layout.host_left + layout.counts.disk * max(u.ram_bytes for u in model.blocks)
        rest = max(steady.compute, steady.link)
        tips.append(f"{format_need(more_host(machine, caps, loop))} more host memory takes the disk out of the loop: "
                    f"a step would take {rest:.1f} s instead of {steady.seconds:.1f} s")  # fmt: skip
        wanted = steady.disk * machine.disk_bytes_per_second / rest
        tips.append(
            f"or a disk that reads {wanted / 1e9:.1f} GB/s (planned with {machine.disk_bytes_per_second / 1e9:.1f})"
        )
    elif steady.bound == "link":
        wanted = steady.link * machine.link_bytes_per_second / max(steady.compute, steady.disk)
        tips.append(f"the link limits: {wanted / 1e9:.0f} GB/s would hide the copies "
                    f"(planned with {machine.link_bytes_per_second / 1e9:.0f})")  # fmt: skip
    else:
        tips.append(f"a step waits for compute only ({steady.compute:.1f} s; disk {steady.disk:.1f} s and link "
                    f"{steady.link:.1f} s are hidden): only a speed recipe or a faster card helps")  # fmt: skip
    homeless = [u for u in model.units if u.needed == "clip" and layout.homes[u.name] is Home.DISK]
    homeless = [u for u in homeless if u.kind not in ("vision", "head")]
    if homeless and not layout.counts.disk:
        size = stored_bytes(homeless)
        homes = layout.host_budget - layout.host_left + sum(u.ram_bytes for u in homeless)
        needed = more_host(machine, caps, budgets.everything if machine.device == "cuda" else homes)
        tips.append(f"{format_need(needed)} more host memory would also hold what each new prompt reads from disk: "
                    f"up to {size / machine.disk_bytes_per_second / DERATING:.0f} s a clip")  # fmt: skip
    return tuple(tips)
