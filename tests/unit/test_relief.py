"""Giving host memory back: what goes first, that the rest stays, and when it is asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_machines import FAST, GIB, W1, card, published

from yellowsound.memory.plan import Plan, plan
from yellowsound.memory.relief import give_back, shortfall
from yellowsound.memory.units import Home

PRO = published("pro-distill")


def reference() -> Plan:
    return plan(card(31.3, 56, rates=FAST, disk=1.67e9), PRO, W1)


def ram_of(found: Plan) -> int:
    return sum(unit.ram_bytes for unit in PRO.units if found.homes[unit.name] is Home.RAM)


def test_the_text_encoder_goes_before_modulations_and_these_before_blocks() -> None:
    before = reference()
    little = give_back(before, PRO, GIB)
    assert {name.rpartition(".")[0] for name in little.released} == {"text_encoder.layers"}
    assert little.plan.step_seconds == before.step_seconds
    much = give_back(before, PRO, ram_of(before) - 25 * GIB)
    assert all(not name.startswith("text_encoder.") or much.plan.homes[name] is Home.DISK for name in before.homes)
    assert any(".modulations" in name for name in much.released)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 60))
def test_enough_is_given_back_and_nothing_else_moves(missing_gib: float) -> None:
    before = reference()
    missing = int(missing_gib * GIB)
    after = give_back(before, PRO, missing)
    assert ram_of(before) - ram_of(after.plan) >= min(missing, ram_of(before))
    changed = {name for name in before.homes if before.homes[name] is not after.plan.homes[name]}
    assert changed == set(after.released)
    assert all(before.homes[n] is Home.RAM and after.plan.homes[n] is Home.DISK for n in changed)
    assert after.plan.step_seconds >= before.step_seconds
    assert after.plan.ram_peak_bytes == before.ram_peak_bytes - sum(
        unit.ram_bytes for unit in PRO.units if unit.name in changed
    )


def test_blocks_that_go_are_spread_over_the_lap() -> None:
    after = give_back(reference(), PRO, 30 * GIB)
    on_disk = [u.index for u in PRO.blocks if after.plan.homes[u.name] is Home.DISK]
    gaps = [b - a for a, b in itertools.pairwise([*on_disk, on_disk[0] + 60])]
    assert len(on_disk) > 8 and max(gaps) <= 60 / len(on_disk) * 2
    assert "blocks" in after.reason and "s instead of" in after.reason


def test_more_than_there_is_gives_back_all() -> None:
    after = give_back(reference(), PRO, 500 * GIB)
    assert Home.RAM not in after.plan.homes.values() and after.plan.step_bound == "disk"


@pytest.mark.parametrize(("available", "wanted"), [(3.0, 0), (2.1, 0), (1.5, 2.5), (0.0, 4.0)])
def test_memory_is_asked_back_when_half_of_the_reserve_is_gone(tmp_path: Path, available: float, wanted: float) -> None:
    (tmp_path / "proc").mkdir()
    text = f"MemTotal: {32 << 20} kB\nMemAvailable: {int(available * (1 << 20))} kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    assert shortfall(tmp_path) == pytest.approx(wanted * GIB, abs=2048)
