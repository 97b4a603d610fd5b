"""The benchmark scripts run end to end on a CPU, write whole rows, skip finished ones and say what failed."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EVERY_ROW = {
    "row", "script", "status", "command", "commit", "created", "gpu", "driver", "versions", "host", "geometry", "arms",
    "raw_seconds", "medians", "bytes", "plan", "took_seconds",
}  # fmt: skip


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), "--smoke", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {file.name.removesuffix(".json"): json.loads(file.read_text()) for file in folder.glob("*.json")}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Both scripts once: the results folder and what each printed."""
    folder = tmp_path_factory.mktemp("benchmarks")
    options = (f"--results={folder / 'rows'}", f"--data={folder / 'data'}", f"--archive={folder / 'rows.tar.gz'}")
    return folder, run("streaming.py", *options), run("peers.py", *options)


def test_every_row_is_whole_and_finished(both: tuple[Path, str, str]) -> None:
    found = rows(both[0] / "rows")
    assert len(found) == 16
    for name, row in found.items():
        assert set(row) >= EVERY_ROW, name
        assert row["status"] == "ok", (name, row.get("reason"))
        assert name == f"{row['script']}.{row['row']}"
        assert "--smoke" in row["command"] and row["versions"]["diffusers"] and row["commit"]


def test_abba_has_two_runs_of_three_steps_an_arm(both: tuple[Path, str, str]) -> None:
    row = rows(both[0] / "rows")["streaming.cap32.abba.small-pro-distill-4"]
    for arm in "AB":
        assert [len(run["step_seconds"]) for run in row["raw_seconds"][arm]] == [3, 3]
        assert all(len(run["block_seconds_by_step"]) == 3 and run["is_finite"] for run in row["raw_seconds"][arm])
    assert all(run["copied_bytes"] == 0 for run in row["raw_seconds"]["A"])
    assert all(run["copied_bytes"] > 0 for run in row["raw_seconds"]["B"])
    low, high = row["medians"]["interval_95"]
    assert low <= row["medians"]["ratio"] <= high
    assert row["plan"]["blocks_by_home"] == {"vram": 1, "ram": 2, "disk": 1}


def test_bits_are_those_of_the_resident_model(both: tuple[Path, str, str]) -> None:
    found = rows(both[0] / "rows")
    assert found["streaming.equality.two-steps.small-pro-distill-4"]["medians"]["equal"] is True
    assert found["streaming.w2.block-major.small-pro-4"]["medians"]["equal"] is True
    peers = [row["medians"]["digest"] for row in found.values() if row["script"] == "peers"]
    assert len(peers) == 3 and len(set(peers)) == 1


def test_block_major_moves_half_the_bytes(both: tuple[Path, str, str]) -> None:
    copied = rows(both[0] / "rows")["streaming.w2.block-major.small-pro-4"]["bytes"]["copied"]
    assert copied["off"] > 1.5 * copied["on"]


def test_tables_and_archive(both: tuple[Path, str, str]) -> None:
    folder, streaming, peers = both
    assert "cap32.abba" in streaming and "gap_share" in streaming
    assert "resident" in peers and "streamed" in peers
    with tarfile.open(folder / "rows.tar.gz") as pack:
        assert len(pack.getnames()) == 16
    page = folder / "page.md"
    page.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    command = [sys.executable, str(BENCHMARKS / "tables.py"), f"--results={folder / 'rows'}", f"--page={page}"]
    subprocess.run(command, check=True)
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
    assert "|  | resident | streamed | offloaded |" in text and "not measured" in text
    subprocess.run([*command, "--check"], check=True)


def test_whole_clips_are_the_same_again(tmp_path: Path) -> None:
    printed = run("clips.py", f"--results={tmp_path}", f"--data={tmp_path}", "--sessions=card16")
    (row,) = rows(tmp_path).values()
    assert row["status"] == "ok" and set(row) >= EVERY_ROW, row.get("reason")
    assert [clip["name"] for clip in row["medians"]["clips"]] == ["first", "new prompt", "known prompt"]
    first, other, again = row["medians"]["clips"]
    assert row["medians"]["same_again"] is True and first["latents_digest"] != other["latents_digest"]
    assert again["read_bytes"] <= first["read_bytes"] and "known prompt" in printed
    page = tmp_path / "page.md"
    page.write_text("<!-- tables: begin --><!-- tables: end -->")
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "tables.py"), f"--results={tmp_path}", f"--page={page}"], check=True
    )
    assert page.read_text().count("| card16.three-clips") == 3


def test_finished_rows_are_skipped_and_late_ones_left_out(both: tuple[Path, str, str], tmp_path: Path) -> None:
    data = f"--data={both[0] / 'data'}"
    before = {file: file.stat().st_mtime_ns for file in (both[0] / "rows").iterdir()}
    run("streaming.py", data, f"--results={both[0] / 'rows'}")
    assert {file: file.stat().st_mtime_ns for file in (both[0] / "rows").iterdir()} == before
    run("streaming.py", data, f"--results={tmp_path}", "--sessions=lite", "--minutes=0.01")
    assert rows(tmp_path) == {}


def event(kind: str, name: str, start: float, seconds: float, size: int = 0) -> dict[str, Any]:
    return {"cat": kind, "name": name, "ts": start, "dur": seconds, "args": {"bytes": size}}


def test_overlap_is_measured_on_unions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from common.overlap import figures  # type: ignore[import-not-found]

    pinned, large = "Memcpy HtoD (Pinned -> Device)", 64 << 20
    trace = [
        event("kernel", "a", 0, 10),
        event("kernel", "b", 5, 10),  # kernels: 0 to 15 and 20 to 30
        event("kernel", "c", 20, 10),
        event("gpu_memcpy", pinned, 12, 10, large),  # 12 to 22: five of ten under kernels
        event("gpu_memcpy", pinned, 24, 2, large),  # wholly under
        event("gpu_memcpy", pinned, 40, 2, 1000),  # a row, no weights
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 40, 2, large),
        {"ph": "M", "name": "process_name"},
    ]
    found = figures(trace)
    assert found["share_of_copy_time_under_kernels"] == pytest.approx(7 / 12)
    assert (found["copies"], found["copied_bytes"], found["copies_from_pageable_memory"]) == (2, 2 * large, 0)
    assert found["kernel_seconds"] == pytest.approx(25e-6)


def test_ratio_of_mirrored_runs_is_free_of_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from common.statistics import ratio

    drift = [1.0, 1.1, 1.21, 1.331]  # each run slower than the one before, in the order A B B A
    a = [[10 * drift[0], 11 * drift[0]], [10 * drift[3], 11 * drift[3]]]
    b = [[10 * drift[1] * 1.02, 11 * drift[1] * 1.02], [10 * drift[2] * 1.02, 11 * drift[2] * 1.02]]
    found = ratio(a, b)
    assert found["ratio"] == pytest.approx(1.02)
    assert found["interval_95"] == pytest.approx([1.02, 1.02])
    assert found["noise_a"] == pytest.approx(0.331)
