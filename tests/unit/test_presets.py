"""Device presets: complete, consistent with the formula, honest about their basis; bad files are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_machines import GIB

from yellowsound.memory.work import PRO, REFERENCE, counted_block_seconds
from yellowsound.presets import DEVICES, device_names, load_device, preset_of
from yellowsound.request import RequestError

NAMES = {
    "rtx-3090", "rtx-4090", "rtx-5060-ti", "rtx-5070-ti", "rtx-5080", "rtx-5090", "rtx-pro-6000", "a100-40", "a100-80",
    "h100", "h200", "l40s",
}  # fmt: skip


def test_the_promised_cards_are_there() -> None:
    assert set(device_names()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_block_times_are_what_the_rates_give_unless_measured(name: str) -> None:
    preset = load_device(name)
    rates = preset.rates
    counted = counted_block_seconds(PRO, REFERENCE, rates.gemm_flops, rates.attention_flops, rates.memory_bytes)
    assert preset.sources and preset.matches
    if preset.basis == "computed":
        assert rates.block_seconds == pytest.approx(counted, rel=0.01)
    else:
        assert name == "h200" and rates.block_seconds == 0.158 > counted


def test_counted_work_is_that_of_the_study() -> None:
    """28.65 TFLOP of large matrix products and 41.3 of self-attention a block, and a little for text and sound."""
    second = counted_block_seconds(PRO, REFERENCE, 1e12, 1e30, 1e30)
    assert second == pytest.approx(28.65 + 0.15, abs=0.1)
    assert counted_block_seconds(PRO, REFERENCE, 1e30, 1e12, 1e30) == pytest.approx(41.32 + 1.12, abs=0.1)


def test_a_machine_from_a_preset_says_what_it_assumes() -> None:
    assumed, told = load_device("rtx-5090").machine(), load_device("rtx-5090").machine(60 * GIB, 7e9)
    assert len(assumed.notes) == 2 and told.notes == ()
    assert told.ram_total_bytes == 60 * GIB and told.disk_bytes_per_second == 7e9
    assert told.vram_free_bytes == told.vram_total_bytes == int(31.3 * GIB)


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40 GB"),
        ("NVIDIA H200", "H200 SXM 141 GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell 96 GB"),
    ],
)
def test_cards_find_their_preset(card: str, name: str) -> None:
    found = preset_of(card)
    assert found is not None and found.name == name


def test_an_unknown_card_has_none() -> None:
    assert preset_of("NVIDIA GeForce GTX 1080") is None


def test_a_users_own_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "name: mine\nvram_gib: 11\nlink_gb_per_second: 12\n"
        "gemm_tflops: 30\nattention_tflops: 25\nmemory_tb_per_second: 0.6\n"
    )
    machine = load_device(own).machine(32 * GIB)
    assert machine.name == "mine" and machine.rates.basis == "computed" and machine.rates.block_seconds > 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: x\nvram_gib: -1\n", "vram_gib"),
        ("name: x\nvram: 3\n", "vram_gib"),
        ("name: [", "is not YAML"),
        ("", "the file"),
        ((DEVICES / "h200.yaml").read_text() + "colour: red\n", "colour"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_its_field(tmp_path: Path, text: str, problem: str) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(text)
    with pytest.raises(RequestError, match=problem):
        load_device(bad)


def test_an_unknown_name_gets_its_nearest() -> None:
    with pytest.raises(RequestError, match=r"rtx5090.*nearest legal value: rtx-5090"):
        load_device("rtx5090")
