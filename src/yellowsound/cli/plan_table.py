"""A plan as people read it: where the weights live, what each stage needs, how long a clip takes, what would help."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table

from yellowsound.memory.budget import format_bytes, format_need
from yellowsound.memory.plan import Plan
from yellowsound.memory.units import Home


def show(plan: Plan, stream: TextIO) -> None:
    """Print a plan; plain text where ``stream`` is no terminal."""
    console = Console(file=stream, width=None if stream.isatty() else 100, highlight=False, soft_wrap=True)
    console.print(_title(plan))
    console.print(_homes(plan))
    console.print(_stages(plan))
    for line in _summary(plan):
        console.print(line)
    for tip in plan.advice:
        console.print(f"faster: {tip}")
    for warning in plan.warnings:
        console.print(f"note: {warning}")


def _title(plan: Plan) -> str:
    g, machine = plan.geometry, plan.machine
    picture = ", from a picture" if g.tail else ""
    branches = ", guidance (two branches)" if g.branches == 2 else ""
    return (
        f"{plan.checkpoint} on {machine.name}: {g.width}x{g.height}, {g.frames} frames, {g.steps} steps, "
        f"{g.dtype}{picture}{branches}; may take {format_bytes(plan.vram_budget_bytes)} of device memory "
        f"and {format_bytes(plan.ram_budget_bytes)} of host memory"
    )


def _homes(plan: Plan) -> Table:
    table = Table(title="where the weights live", title_justify="left")
    table.add_column("class of unit")
    table.add_column("needed")
    for column in ("units", "size", "vram", "ram", "disk"):
        table.add_column(column, justify="right")
    for row in plan.classes:
        counts = (str(count) if count else "-" for count in (row.vram, row.ram, row.disk))
        table.add_row(row.label, f"per {row.needed}", str(row.count), format_bytes(row.bytes), *counts)
    return table


def _stages(plan: Plan) -> Table:
    table = Table(title="stages", title_justify="left")
    table.add_column("stage")
    for column in ("peak vram", "peak ram", "first clip", "warm clip"):
        table.add_column(column, justify="right")
    table.add_column("note")
    for stage in plan.stages:
        memory = format_bytes(stage.vram_bytes), format_bytes(stage.ram_bytes)
        table.add_row(stage.stage, *memory, f"{stage.first_seconds:.1f} s", f"{stage.seconds:.1f} s", stage.note)
    return table


def _summary(plan: Plan) -> list[str]:
    label = "measured block time" if plan.basis == "measured" else "computed"
    lines = [
        f"residency: {_residency(plan)}; VAE decode {plan.vae_decode}",
        f"a step moves {_moved(plan.step_bytes)}; a clip with a new prompt once {_moved(plan.clip_bytes)}",
        f"a step takes {plan.step_seconds:.1f} s (waiting for {plan.step_bound}), "
        f"lap one {plan.first_step_seconds:.1f} s cold and {plan.warm_first_step_seconds:.1f} s warm ({label})",
        f"first clip {plan.first_clip_seconds:.0f} s, warm clip {plan.warm_clip_seconds:.0f} s, "
        f"{plan.clips_per_hour:.1f} clips an hour ({label})",
    ]
    if plan.host_needs:
        least, loop, all_of_it = (format_need(size) for size in plan.host_needs)
        shared = f" that {plan.machine.workers} workers share" if plan.machine.workers > 1 else ""
        last = "every home beside prompt expansion" if plan.expansion else "nothing read twice"
        lines.append(
            f"a host for this card and clip{shared}: {least} at least, {loop} with no disk in the loop, "
            f"{all_of_it} with {last}"
        )
    if plan.expansion:
        where = f"{plan.expansion.layers_in_vram} layers in vram, {plan.expansion.layers_in_ram} in ram"
        lines.append(f"prompt expansion: {plan.expansion.seconds_per_token:.3f} s a token ({where})")
    return lines


def _residency(plan: Plan) -> str:
    if plan.is_resident:
        return "the transformer stays on the device"
    names = {Home.RAM: f"{'page-locked' if plan.pinned else 'pageable'} host memory", Home.DISK: "disk"}
    sources = " and ".join(name for home, name in names.items() if plan.step_bytes[home])
    return f"blocks stream through {plan.slots} slots of {format_bytes(plan.slot_bytes)} from {sources}"


def _moved(size: object) -> str:
    assert isinstance(size, dict)
    parts = [f"{format_bytes(size[home])} from {home}" for home in (Home.RAM, Home.DISK) if size[home]]
    return " and ".join(parts) or "nothing"
