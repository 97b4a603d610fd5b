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
    assert len(found) == 15
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
        assert len(pack.getnames()) == 15
    page = folder / "page.md"
    page.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    command = [sys.executable, str(BENCHMARKS / "tables.py"), f"--results={folder / 'rows'}", f"--page={page}"]
    subprocess.run(command, check=True)
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
    assert "|  | resident | streamed | offloaded |" in text and "not measured" in text
    subprocess.run([*command, "--check"], check=True)


def test_finished_rows_are_skipped_and_late_ones_left_out(both: tuple[Path, str, str], tmp_path: Path) -> None:
    data = f"--data={both[0] / 'data'}"
    before = {file: file.stat().st_mtime_ns for file in (both[0] / "rows").iterdir()}
    run("streaming.py", data, f"--results={both[0] / 'rows'}")
    assert {file: file.stat().st_mtime_ns for file in (both[0] / "rows").iterdir()} == before
    run("streaming.py", data, f"--results={tmp_path}", "--sessions=lite", "--minutes=0.01")
    assert rows(tmp_path) == {}
