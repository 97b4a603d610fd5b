"""Placement: counts, even spreading, and the step time against a simulation that knows no formula."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import Hardware, lap_seconds

from yellowsound.memory.placement import Counts, arrange, count, pace, spread
from yellowsound.memory.units import Home

GIB = 1 << 30
LETTERS = {Home.VRAM: "V", Home.RAM: "P", Home.DISK: "D"}
GOLDEN = json.loads((Path(__file__).parent / "golden_plans.json").read_text())["placements"]
MACHINES = [(22, 38), (13, 47), (4, 52), (22, 20), (13, 20), (4, 20), (4, 5)]
UNIT = 0.899 * GIB


def predicted(counts: Counts, hardware: Hardware) -> float:
    streamed = counts.ram + counts.disk
    return pace(
        counts.total * hardware.block_seconds,
        counts.disk * hardware.block_bytes,
        streamed * hardware.block_bytes,
        hardware.disk_rate,
        hardware.link_rate,
        derating=1,
    ).seconds


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda row: row["name"])
def test_golden_placements(golden: dict[str, Any]) -> None:
    given_, wanted = golden["inputs"], golden["plan"]
    unit = given_["block_bytes"]
    vram = int(given_["vram_budget_gib"] * GIB) - given_["slots"] * unit
    found = count(given_["blocks"], unit, unit, vram, int((given_["ram_budget_gib"] - given_["ring_gib"]) * GIB))
    assert (found.vram, found.ram, found.disk) == (wanted["vram"], wanted["ram"], wanted["disk"])
    assert "".join(LETTERS[home] for home in arrange(found)) == wanted["homes"]
    lap = pace(
        given_["blocks"] * given_["block_seconds"],
        found.disk * unit,
        (found.ram + found.disk) * unit,
        given_["disk_gb_per_second"] * 1e9,
        given_["link_gb_per_second"] * 1e9,
    )
    assert lap.seconds == pytest.approx(wanted["step_seconds"], abs=1e-3) and lap.bound == wanted["bound"]


def test_golden_placements_are_those_of_the_study() -> None:
    """Un-hoisted blocks of 0.899 GiB on the five machines: V/P/D as derived and simulated independently."""
    found = [tuple(row["plan"][home] for home in ("vram", "ram", "disk")) for row in GOLDEN[::2]]
    assert found == [(22, 38, 0), (13, 47, 0), (4, 52, 4), (13, 20, 27), (4, 20, 36)]


counts = st.builds(Counts, st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)).filter(lambda c: c.total > 0)


@given(counts)
def test_every_home_is_spread_evenly(counts: Counts) -> None:
    homes = arrange(counts)
    wanted = {Home.VRAM: counts.vram, Home.RAM: counts.ram, Home.DISK: counts.disk}
    for home, number in wanted.items():
        assert homes.count(home) == number
        for end in range(counts.total + 1):
            assert abs(homes[:end].count(home) - end * number / counts.total) <= 1


@given(st.integers(1, 200), st.data())
def test_disk_positions_follow_the_rule(positions: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, positions))
    places = spread(positions, chosen)
    assert places == sorted(set(places)) and len(places) == chosen
    assert all(place == int((i + 0.5) * positions / chosen + 1e-9) for i, place in enumerate(places))


@given(st.integers(1, 80), st.integers(0, 60 * GIB), st.integers(0, 60 * GIB), st.integers(0, 8 * GIB))
def test_more_memory_never_leaves_more_on_disk(blocks: int, vram: int, ram: int, more: int) -> None:
    base = count(blocks, GIB, GIB, vram, ram)
    for richer in (count(blocks, GIB, GIB, vram + more, ram), count(blocks, GIB, GIB, vram, ram + more)):
        assert richer.disk <= base.disk and richer.vram >= base.vram and richer.total == base.total


def test_prediction_is_within_two_percent_of_the_simulation() -> None:
    """Seven machines, three disks, three links, three block times, two or three slots, ring of 1 GiB."""
    for (vram, ram), disk, link, block, slots in product(
        MACHINES, (1.67e9, 3.5e9, 7e9), (12e9, 25e9, 50e9), (0.25, 0.15, 0.08), (2, 3)
    ):
        found, hardware = Counts(vram, ram, 60 - vram - ram), Hardware(UNIT, block, disk, link, slots)
        assert lap_seconds(arrange(found), hardware) == pytest.approx(predicted(found, hardware), rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 50), st.integers(0, 50), st.floats(0.05, 0.5), st.floats(1e9, 10e9), st.floats(10e9, 60e9),
    st.floats(0.3, 1.0),
)  # fmt: skip
def test_prediction_holds_for_any_machine(
    vram: int, ram: int, block: float, disk: float, link: float, unit_gib: float
) -> None:
    found = count(60, 1, 1, vram, ram)
    hardware = Hardware(unit_gib * GIB, block, disk, link)
    assert lap_seconds(arrange(found), hardware, 12, 6) == pytest.approx(predicted(found, hardware), rel=0.02)


@pytest.mark.parametrize(("block", "stall"), [(0.25, 4.3), (0.15, 6.2), (0.08, 7.6)], ids=lambda value: str(value))
def test_simulation_shows_what_a_run_of_disk_blocks_costs(block: float, stall: float) -> None:
    """The control: disk blocks in one run stall for the seconds an independent study found (22/20/18, 1.67 GB/s)."""
    contiguous = [Home.VRAM] * 22 + [Home.RAM] * 20 + [Home.DISK] * 18
    hardware = Hardware(UNIT, block, 1.67e9, 50e9, slots=3, ring_chunks=32)
    assert lap_seconds(contiguous, hardware) - 60 * block == pytest.approx(stall, abs=0.1)


def test_pageable_homes_pass_the_processor() -> None:
    fast = pace(1.0, 0, 30e9, 3e9, 50e9)
    assert fast.seconds == 1.0 and fast.bound == "compute"
    slow = pace(1.0, 0, 30e9, 3e9, 50e9, pageable_bytes=30e9)
    assert slow.bound == "link" and slow.seconds == pytest.approx(30 / 12 / 0.7)
