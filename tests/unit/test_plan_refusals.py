"""Refusals of plans: what lacks is enough, sums add up, remedies help."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_machines import GIB, W1, card, processor, published

from yellowsound.memory.budget import SYSTEM_BYTES, after_reserve, more_memory
from yellowsound.memory.machine import Machine
from yellowsound.memory.plan import Geometry, Plan, PlanError, plan
from yellowsound.presets import device_names, load_device

CHECKPOINTS = ("pro", "pro-distill", "lite", "lite-distill")
OFFLOADS = ("auto", "none", "module", "block")
geometries = st.builds(
    Geometry,
    frames=st.integers(0, 60).map(lambda n: 4 * n + 1),
    height=st.integers(1, 80).map(lambda n: 16 * n),
    width=st.integers(1, 80).map(lambda n: 16 * n),
    tail=st.booleans(),
    branches=st.sampled_from((1, 2)),
    steps=st.sampled_from((1, 10, 50)),
)


def outcome(machine: Machine, name: str, geometry: Geometry, **options: object) -> Plan | PlanError:
    try:
        return plan(machine, published(name), geometry, **options)  # type: ignore[arg-type]
    except PlanError as error:
        return error


@given(st.integers(1, 64 * GIB), st.integers(0, 256 * GIB), st.integers(0, 256 * GIB))
def test_more_memory_is_the_least_that_is_enough(budget: int, total: int, available: int) -> None:
    more = more_memory(budget, total, available)
    assert after_reserve(total + more, available + more) >= budget
    assert more == 0 or after_reserve(total + more - 1, available + more - 1) < budget


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(device_names()), st.sampled_from(CHECKPOINTS), geometries, st.sampled_from(OFFLOADS),
    st.integers(SYSTEM_BYTES + 1, 80 * GIB), st.none() | st.integers(1 << 20, 90 * GIB), st.integers(1, 3),
    st.booleans(),
)  # fmt: skip
def test_what_lacks_is_enough(
    preset: str, name: str, geometry: Geometry, offload: str, ram: int, vram: int | None, workers: int, expand: bool
) -> None:
    """Granted to --ram, to --vram or to the card, the missing bytes are never missed again."""
    card_bytes = load_device(preset).machine().vram_total_bytes
    granted: set[str] = set()
    for _ in range(3):
        machine = load_device(preset).machine(ram)
        machine = dataclasses.replace(machine, vram_total_bytes=card_bytes, vram_free_bytes=card_bytes)
        found = outcome(machine.for_one_of(workers), name, geometry, offload=offload, vram_bytes=vram, expand=expand)
        if isinstance(found, Plan) or not found.memory:
            return
        assert found.memory not in granted and found.missing_bytes > 0
        granted.add(found.memory)
        if found.memory == "host memory":
            ram += found.missing_bytes
            continue
        if "raise --vram" not in found.remedies:
            card_bytes += found.missing_bytes
        if vram is not None:
            vram += found.missing_bytes
    pytest.fail("three refusals for two memories")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CHECKPOINTS), geometries, st.floats(1, 64), st.none() | st.floats(0.5, 64),
    st.none() | st.integers(1 << 20, 20 * GIB), st.booleans(),
)  # fmt: skip
def test_what_lacks_is_enough_without_a_card(
    name: str, geometry: Geometry, ram: float, cap: float | None, vram: int | None, expand: bool
) -> None:
    machine, ram_bytes = processor(ram), None if cap is None else int(cap * GIB)
    granted: set[str] = set()
    for _ in range(3):
        found = outcome(machine, name, geometry, vram_bytes=vram, ram_bytes=ram_bytes, expand=expand)
        if isinstance(found, Plan) or not found.memory:
            return
        assert found.memory not in granted and found.missing_bytes > 0
        granted.add(found.memory)
        if found.memory == "VRAM":
            assert vram is not None
            vram += found.missing_bytes
            continue
        ram_bytes = None if ram_bytes is None else ram_bytes + found.missing_bytes
        sizes = ("vram_total_bytes", "vram_free_bytes", "ram_total_bytes", "ram_available_bytes")
        machine = dataclasses.replace(machine, **{s: getattr(machine, s) + found.missing_bytes for s in sizes})
    pytest.fail("three refusals for two memories")


def gib(text: str) -> float:
    scale = {"GiB": 1.0, "MiB": 2**-10, "KiB": 2**-20}
    number, unit = text.split()
    return float(number) * scale[unit]


@pytest.mark.parametrize(
    ("machine", "name", "options"),
    [
        (card(31.3, 64), "pro-distill", {"vram_bytes": GIB}),
        (card(31.3, 64), "pro-distill", {"vram_bytes": GIB, "offload": "module"}),
        (card(39.5, 128), "lite-distill", {"vram_bytes": GIB, "offload": "none"}),
        (card(31.3, 5), "pro", {}),
        (processor(16), "pro", {}),
        (processor(64), "lite", {"vram_bytes": GIB // 8}),
    ],
)
def test_the_sum_of_a_refusal_is_right(machine: Machine, name: str, options: dict[str, object]) -> None:
    """What takes part, less what there is, is what lacks (and what the reserve takes of it)."""
    error = outcome(machine, name, W1, **options)
    assert isinstance(error, PlanError)
    taken, rest = re.split(r", in ", error.problem)
    sizes = re.findall(r"(\d+) slots of ([\d.]+ [GMK]iB)|([\d.]+ [GMK]iB)", taken)
    parts = sum(int(slots or 1) * gib(slot or size) for slots, slot, size in sizes)
    limit, lacks, *reserve = (gib(size) for size in re.findall(r"[\d.]+ [GMK]iB", rest))
    assert parts - limit == pytest.approx(lacks - sum(reserve), abs=0.35)


def test_remedies_are_those_that_help() -> None:
    def first(machine: Machine, name: str = "pro-distill", **options: object) -> str:
        error = outcome(machine, name, W1, **options)
        assert isinstance(error, PlanError) and "--device-preset" not in str(error)
        return error.remedies[0]

    assert first(card(31.3, 64), vram_bytes=6 * GIB) == "raise --vram"
    assert first(card(7.5, 64), vram_bytes=6 * GIB) == "use a larger card"
    assert first(card(31.3, 64, free_gib=8)) == "free memory of the card"
    assert first(card(31.3, 64, free_gib=8), vram_bytes=6 * GIB) == "raise --vram and free memory of the card"
    assert first(card(31.3, 64), ram_bytes=3 * GIB) == "raise --ram"
    assert first(card(31.3, 5)) == "use a host with more memory"
    busy = dataclasses.replace(card(31.3, 64), ram_available_bytes=5 * GIB)
    assert first(busy) == "free host memory"
    assert first(busy, ram_bytes=3 * GIB) == "raise --ram and free host memory"
    assert first(processor(64), "lite", vram_bytes=GIB // 8) == "raise --vram"
    assert first(processor(16), vram_bytes=24 * GIB) == "use a host with more memory"
    assert first(processor(64), "lite", ram_bytes=6 * GIB) == "raise --ram"


def test_smaller_clips_and_checkpoints_are_named_only_where_they_help() -> None:
    def ways(machine: Machine, name: str, geometry: Geometry = W1, **options: object) -> str:
        error = outcome(machine, name, geometry, **options)
        assert isinstance(error, PlanError)
        return ", ".join(error.remedies[1:])

    assert ways(card(7.5, 64), "pro") == "ask for fewer frames or a smaller size, use a lite checkpoint"
    assert ways(card(5, 64), "lite") == "ask for fewer frames or a smaller size"
    assert ways(card(5, 64), "pro", Geometry(frames=1, height=64, width=64)) == "use a lite checkpoint"
    assert ways(processor(64), "lite", vram_bytes=GIB // 8) == ""
    assert ways(card(31.3, 5), "pro") == ""  # the process itself


def test_tiles_are_named_only_where_they_help() -> None:
    busy = outcome(card(79, 64, free_gib=20), "lite", W1)
    hopeless = outcome(card(79, 64, free_gib=3), "lite", W1)
    assert isinstance(busy, PlanError) and isinstance(hopeless, PlanError)
    assert "cap --vram to decode in tiles" in busy.remedies
    assert "cap --vram to decode in tiles" not in hopeless.remedies
