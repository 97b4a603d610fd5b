"""Measured speeds replace assumed ones, and are found again by the next plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from plan_machines import W1, card, published

from yellowsound.memory.plan import plan
from yellowsound.memory.speeds import recall_speeds, record_speeds, with_measured
from yellowsound.presets import load_device

NOTES = ("a disk of 3.5 GB/s is assumed: say --disk-speed", "a link of 12 GB/s is assumed: the driver does not tell")


def test_measured_values_end_the_notes_about_assumed_ones() -> None:
    machine = dataclasses.replace(card(), notes=NOTES)
    measured = with_measured(machine, disk=1.2e9)
    assert measured.disk_bytes_per_second == 1.2e9 and measured.notes == NOTES[1:]
    assert with_measured(machine, link=55e9).notes == NOTES[:1]
    assert with_measured(machine) == machine


def test_a_measured_block_makes_the_plan_measured() -> None:
    found = plan(with_measured(card(), block=0.155), published("pro-distill"), W1)
    assert found.basis == "measured" and found.step_seconds == pytest.approx(60 * 0.155)
    assert not any("every time is computed" in warning for warning in found.warnings)


def test_speeds_are_found_again_by_name(tmp_path: Path) -> None:
    machine = card()
    record_speeds(machine, disk=1.2e9, folder=tmp_path)
    record_speeds(machine, link=55.3e9, block=0.155, folder=tmp_path)
    again = recall_speeds(machine, tmp_path)
    assert (again.disk_bytes_per_second, again.link_bytes_per_second) == (1.2e9, 55.3e9)
    assert again.rates.block_seconds == 0.155 and again.rates.basis == "measured"
    other = dataclasses.replace(machine, name="another card")
    assert recall_speeds(other, tmp_path) == other


@pytest.mark.parametrize("text", ["", "[1]", '{"test card": {"disk_bytes_per_second": "fast", "block_seconds": -1}}'])
def test_a_damaged_record_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "speeds.json").write_text(text)
    assert recall_speeds(card(), tmp_path) == card()


def test_only_a_block_of_the_very_model_counts_as_measured() -> None:
    h200 = load_device("h200").machine(ram_bytes=64 << 30)
    lite, pro = (plan(h200, published(name), W1) for name in ("lite-distill", "pro-distill"))
    assert (lite.basis, pro.basis) == ("measured", "measured")
    assert lite.block_seconds == pytest.approx(0.073) and pro.block_seconds == pytest.approx(0.158)
    unknown = dataclasses.replace(h200, rates=dataclasses.replace(h200.rates, lite_block_seconds=None))
    scaled = plan(unknown, published("lite-distill"), W1)
    assert scaled.basis == "computed" and any("scaled from one of Pro" in note for note in scaled.warnings)
    assert scaled.block_seconds < 0.06  # what the count alone says: products this small run slower than Pro's
