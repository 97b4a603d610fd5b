"""yellowsound plan: its table, its JSON, and one-line refusals; no GPU, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from yellowsound.cli import main
from yellowsound.memory.budget import HostMemory


@pytest.fixture(autouse=True)
def nothing_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        main(["plan", *arguments])
    except SystemExit as end:
        assert not end.code, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["plan", *arguments])
    assert end.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


CARD = ("--checkpoint", "pro-distill", "--device-preset", "rtx-5090")
REFERENCE = (*CARD, "--ram", "60GiB", "--disk-speed", "3.5GB/s")


def test_the_table_says_what_lives_where_and_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, *REFERENCE)
    blocks = next(line for line in text.splitlines() if "fused blocks" in line)
    assert [cell.strip() for cell in blocks.strip("│").split("│")] == [
        "fused blocks", "per step", "60", "45.5 GiB", "26", "34", "-",
    ]  # fmt: skip
    assert "a step moves 25.8 GiB from ram;" in text and "(computed)" in text
    assert "clips an hour" in text and "a host for this card and clip:" in text
    assert "faster:" in text and "note: no block time was measured on RTX 5090" in text


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(run(capsys, *REFERENCE, "--json", "--image", "--expand-prompt"))
    assert found["geometry"]["tail"] and found["expansion"]["layers_in_vram"] == 28
    assert found["machine"]["ram_total_bytes"] == 60 << 30
    assert sum(home == "ram" for name, home in found["homes"].items() if name.split(".")[-1].isdigit()) > 34


def test_request_options_reach_the_geometry(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--size", "512x320", "--seconds", "1", "--steps", "30", "--guidance", "4", "--json")
    found = json.loads(run(capsys, "--checkpoint", "lite", "--device-preset", "rtx-4090", *options))
    geometry = found["geometry"]
    assert (geometry["width"], geometry["height"], geometry["frames"]) == (512, 320, 25)
    assert (geometry["steps"], geometry["branches"]) == (30, 2)


def test_workers_and_caps(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *REFERENCE, "--workers", "2", "--vram", "24GiB", "--json"))
    assert found["machine"]["workers"] == 2 and found["vram_peak_bytes"] <= 24 << 30


def test_this_machine_and_the_demo_are_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "--device", "cpu", "--json"))
    assert found["machine"]["name"] == "CPU" and found["geometry"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--checkpoint", "pro", "--device-preset", "rtx-5080", "--ram", "6GiB"), "lacks"),
        (("--device-preset", "rtx-9999"), "device_preset=rtx-9999"),
        (("--checkpoint", "lite-distill", "--device-preset", "h200", "--guidance", "3"), "guidance_scale"),
        (("--checkpoint", "pro", "--device-preset", "h200", "--ram", "much"), "ram=much"),
        (("--checkpoint", "pro", "--device-preset", "h200", "--size", "865x480"), "864x480"),
        (("--checkpoint", "nowhere"), "nowhere"),
        ((*CARD, "--disk-speed", "7"), "disk_speed=7: lacks its unit: 7GB/s?"),
        ((*CARD, "--vram", "16"), "vram=16: lacks its unit: 16GiB?"),
        ((*CARD, "--ram", "64"), "ram=64: lacks its unit: 64GiB?"),
        ((*CARD, "--ram", ""), "ram=: must be a size above zero"),
        ((*CARD, "--ram", "2GiB"), "ram=2.0 GiB: must be more than the 2.5 GiB"),
        ((*CARD, "--workers", "0"), "workers=0: must be a whole number from 1"),
        ((*CARD, "--workers=-1"), "workers=-1: must be a whole number from 1"),
        ((*CARD, "--seconds", "5", "--frames", "9"), "seconds=5.0: cannot be given together with --frames 9"),
        ((*CARD, "--frames", "1.5"), "'1.5' is no whole number"),
        ((*CARD, "--steps", "1.9"), "'1.9' is no whole number"),
        ((*CARD, "--device", "cpu"), "device=cpu: cannot be given together with --device-preset rtx-5090"),
    ],
)
def test_refusals_are_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(capsys, *arguments)


def test_what_a_request_warns_of_is_among_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "num_frames=120 is not 4k+1: 121 frames are made"
    assert f"note: {sentence}" in run(capsys, *REFERENCE, "--frames", "120")
    assert sentence in json.loads(run(capsys, *REFERENCE, "--frames", "120", "--json"))["warnings"]


def test_a_card_that_is_not_there_is_no_programming_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yellowsound.memory.probe.card_of_driver", lambda index: None)
    told = refused(capsys, "--device", "cuda")
    assert told.startswith("yellowsound: device=cuda: this machine's driver shows no NVIDIA card; --device-preset")


def test_a_refusal_names_the_options_of_this_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = refused(capsys, *CARD, "--ram", "8GiB")
    assert "; raise --ram" in poor and "free" not in poor
    monkeypatch.setattr("yellowsound.memory.probe.card_of_driver", lambda index: None)
    monkeypatch.setattr(
        "yellowsound.memory.probe.host_memory", lambda root: HostMemory(16 << 30, 12 << 30, "MemAvailable")
    )
    hidden = refused(capsys, "--checkpoint", "pro-distill", "--vram", "24GiB")
    assert "; this machine shows no card: name one with --device-preset" in hidden and "raise --vram" not in hidden
    assert "--device-preset" not in refused(capsys, "--checkpoint", "pro-distill", "--device", "cpu")
