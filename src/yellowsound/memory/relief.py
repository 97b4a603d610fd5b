"""Relief: which host memory to give back when somebody else needs it, and the plan that remains.

Asked between steps, before the reserve is gone: a home given up costs reads, swapping or being killed costs the clip.
Pure but for ``shortfall``, which looks at /proc and the cgroups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from yellowsound.memory.budget import format_bytes, host_memory, reserve_bytes
from yellowsound.memory.layout import clip_units
from yellowsound.memory.placement import spread
from yellowsound.memory.plan import Plan, bytes_by_home, classes_of
from yellowsound.memory.timing import paced
from yellowsound.memory.units import Home, ModelDescription, Unit


@dataclass(frozen=True, slots=True)
class Relief:
    """The plan after homes were given up, the units that lost theirs, and a sentence for the event."""

    plan: Plan
    released: tuple[str, ...]
    reason: str


def shortfall(root: Path = Path("/")) -> int:
    """Bytes to give back now: what is missing to the full reserve once less than half of it is left, else 0."""
    memory = host_memory(root)
    reserve = reserve_bytes(memory.total_bytes, memory.total_bytes)
    return reserve - memory.available_bytes if memory.available_bytes < reserve // 2 else 0


def give_back(plan: Plan, model: ModelDescription, missing_bytes: int) -> Relief:
    """Move RAM homes worth ``missing_bytes`` to disk, or all there are.

    Once-a-clip units go first, the least useful before others; then blocks, evenly spread over the lap, so that no run
    of disk units appears. Other units keep their homes: nothing has to be read to give memory back.
    """
    in_ram = [unit for unit in clip_units(model, plan.expansion is not None) if plan.homes[unit.name] is Home.RAM]
    released, freed = _take(list(reversed(in_ram)), missing_bytes)
    if freed < missing_bytes:
        released += _spread_blocks(plan, model, missing_bytes - freed)
    homes = {**plan.homes, **{unit.name: Home.DISK for unit in released}}
    compute = plan.block_seconds * len(model.blocks)
    steady = paced(plan.machine, homes, plan.pinned, model.blocks, compute)
    slower = (plan.geometry.steps - 1) * (steady.seconds - plan.step_seconds)
    held = sum(unit.ram_bytes for unit in released)
    remaining = replace(
        plan,
        homes=homes,
        classes=classes_of(model, homes),
        step_bytes=bytes_by_home(model.blocks, homes),
        clip_bytes=bytes_by_home(clip_units(model, plan.expansion is not None), homes),
        step_seconds=steady.seconds,
        step_bound=steady.bound,
        warm_clip_seconds=plan.warm_clip_seconds + slower,
        stages=tuple(replace(stage, ram_bytes=stage.ram_bytes - held) for stage in plan.stages),
    )
    return Relief(remaining, tuple(unit.name for unit in released), _sentence(plan, remaining, released, held))


def _take(units: Sequence[Unit], missing_bytes: int) -> tuple[list[Unit], int]:
    taken: list[Unit] = []
    freed = 0
    for unit in units:
        if freed >= missing_bytes:
            break
        taken.append(unit)
        freed += unit.ram_bytes
    return taken, freed


def _spread_blocks(plan: Plan, model: ModelDescription, missing_bytes: int) -> list[Unit]:
    held = [unit for unit in model.blocks if plan.homes[unit.name] is Home.RAM]
    if not held:
        return []
    wanted = min(-(-missing_bytes // max(unit.ram_bytes for unit in held)), len(held))
    return [held[position] for position in spread(len(held), wanted)]


def _sentence(before: Plan, after: Plan, released: Sequence[Unit], held: int) -> str:
    blocks = sum(unit.kind == "block" for unit in released)
    others = len(released) - blocks
    return (
        f"host memory is short: {format_bytes(held)} given back ({blocks} blocks, {others} other units); "
        f"a step takes {after.step_seconds:.1f} s instead of {before.step_seconds:.1f} s"
    )
