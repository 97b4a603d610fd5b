"""Figures that a plan prints: whoever follows them gets what they promise."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_machines import FAST, GIB, W1, card, published

from yellowsound.checkpoint import Checkpoint
from yellowsound.cli.plan_table import show
from yellowsound.memory.budget import format_need, parse_bytes
from yellowsound.memory.claims import CONTEXT_BYTES
from yellowsound.memory.machine import Machine
from yellowsound.memory.plan import Geometry, Plan, PlanError, plan
from yellowsound.memory.units import Home, ModelDescription, describe
from yellowsound.presets import load_device

PRESETS = ("rtx-5060-ti", "rtx-4090", "rtx-5090", "a100-40", "h200")
CHECKPOINTS = ("pro", "pro-distill", "lite")
NEVER_AT_HOME = ("text_encoder.vision", "text_encoder.head")  # read by each expansion


def printed(found: Plan) -> str:
    stream = io.StringIO()
    show(found, stream)
    return stream.getvalue()


def sizes(sentence: str) -> list[int]:
    return [parse_bytes(size) for size in re.findall(r"[\d.]+ [GMK]iB", sentence)]


def host(preset: str, ram: int, workers: int = 1) -> Machine:
    return load_device(preset).machine(ram).for_one_of(workers)


def disk_blocks(found: Plan, model: ModelDescription) -> int:
    return sum(found.homes[unit.name] is Home.DISK for unit in model.blocks)


def homeless(found: Plan) -> list[str]:
    return [name for name, home in found.homes.items() if home is Home.DISK and name not in NEVER_AT_HOME]


@given(st.integers(1, 512 * GIB))
def test_needs_are_never_rounded_down(size: int) -> None:
    shown = parse_bytes(format_need(size))
    assert size <= shown <= 2 * size + 1024


def test_needs_for_people() -> None:
    assert [format_need(size) for size in (10 * GIB, 10 * GIB + 1, (88 << 20) + 1, 2049)] == [
        "10.0 GiB", "10.1 GiB", "89 MiB", "3 KiB",
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_host_of_the_printed_size_does_what_is_promised(preset: str, name: str, expand: bool, workers: int) -> None:
    model = published(name)
    first = plan(host(preset, 96 * GIB, workers), model, W1, expand=expand)
    line = next(line for line in printed(first).splitlines() if line.startswith("a host for this card"))
    assert (f"that {workers} workers share" in line) == (workers > 1)
    least, loop, everything = sizes(line)

    def follow(ram: int) -> Plan:
        return plan(host(preset, ram, workers), model, W1, expand=expand)

    follow(least)
    with pytest.raises(PlanError):
        follow(least - workers * (210 << 20))
    assert disk_blocks(follow(loop), model) == 0
    whole = follow(everything)
    assert not homeless(whole) and (whole.expansion is None or not whole.expansion.empties_ram)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_advised_host_memory_is_enough(preset: str, name: str, expand: bool, workers: int) -> None:
    """Small hosts and slow disks: the disk limits first, then once-a-clip units lack homes."""
    model, told = published(name), 0
    for gib in (30, 40, 60):
        machine = dataclasses.replace(host(preset, gib * GIB, workers), rates=FAST)
        found = plan(machine, model, W1, expand=expand)
        for tip in found.advice:
            if "more host memory" not in tip:
                continue
            more = sizes(tip)[0]
            richer = dataclasses.replace(host(preset, gib * GIB + more, workers), rates=FAST)
            again = plan(richer, model, W1, expand=expand)
            assert disk_blocks(again, model) == 0 and ("also hold" not in tip or not homeless(again))
            told += 1
    assert told or not homeless(found)


def test_tiny_models_run_where_the_figure_says(tiny_distill: Path) -> None:
    """The reserve is at most half of what is available, for the figure as for the plan."""
    model = describe(Checkpoint.open(tiny_distill), "bfloat16")
    small = Geometry(frames=9, height=64, width=96, steps=4)
    needs = plan(host("rtx-4090", 64 * GIB), model, small).host_needs
    assert needs is not None and needs[0] < 7 * GIB
    plan(host("rtx-4090", needs[0]), model, small)
    with pytest.raises(PlanError):
        plan(host("rtx-4090", needs[0] - 1), model, small)


def test_the_expansion_row_counts_the_homes_that_stay() -> None:
    model = published("lite-distill")
    found = plan(card(79, 128), model, W1, expand=True)
    assert found.expansion is not None and not found.expansion.empties_vram
    lived = [unit for unit in model.units if found.homes[unit.name] is Home.VRAM and unit.kind != "rest"]
    assert lived and found.stages[0].vram_bytes > CONTEXT_BYTES["cuda"] + sum(unit.device_bytes for unit in lived)
    crowded = plan(card(15.5, 128), published("pro-distill"), W1, expand=True)
    assert crowded.expansion is not None and crowded.expansion.empties_vram and not crowded.expansion.empties_ram
    held = sum(u.ram_bytes for u in published("pro-distill").units if crowded.homes[u.name] is Home.RAM)
    assert crowded.stages[0].vram_bytes == CONTEXT_BYTES["cuda"] + crowded.expansion.vram_bytes
    assert crowded.stages[0].ram_bytes > held + crowded.expansion.ram_bytes
    assert crowded.ram_peak_bytes <= crowded.ram_budget_bytes


@pytest.mark.parametrize(
    ("ram", "sources"),
    [(96, "from page-locked host memory"), (32, "from page-locked host memory and disk"), (11, "from disk")],
)
def test_blocks_come_from_where_they_are(ram: int, sources: str) -> None:
    found = plan(host("rtx-5090", ram * GIB), published("pro-distill"), W1)
    line = next(line for line in printed(found).splitlines() if line.startswith("residency:"))
    assert f"{sources};" in line
