"""Activation peaks: computed from tensor sizes, measured ones first, recorded on first use."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from plan_machines import GIB, W1, published

from yellowsound.memory.peaks import Peaks, computed_peak, load_peaks, peak_key, record_peak

PRO, LITE = published("pro-distill"), published("lite-distill")


def test_the_formula_meets_the_measured_block() -> None:
    """6.9 GiB were measured for one eager Pro block; the fifth of the width takes the fifth."""
    assert computed_peak("denoise", PRO, W1) == pytest.approx(6.9 * GIB, rel=0.01)
    assert computed_peak("denoise", LITE, W1) == pytest.approx(6.9 * GIB * 1792 / 4096, rel=0.01)


def test_the_formula_meets_the_measured_decodes() -> None:
    """On an H200 a whole decode at 864x480 took 24.1 GB beyond its weights, a tiled one 3.90."""
    assert computed_peak("decode_whole", PRO, W1) == pytest.approx(24.1e9, rel=0.01)
    measured, basis = load_peaks(Path("/nonexistent")).find("decode_tiled", PRO, W1)
    assert basis == "measured"
    assert measured <= computed_peak("decode_tiled", PRO, W1) == pytest.approx(measured, rel=0.03)


def test_the_decoders_mask_grows_with_the_square_of_the_tokens() -> None:
    large = dataclasses.replace(W1, height=1024, width=1024)
    assert computed_peak("decode_whole", PRO, large) > (5 * 128 * 128) ** 2 * 6
    small = dataclasses.replace(W1, height=128, width=128)
    assert computed_peak("decode_whole", PRO, small) == computed_peak("decode_tiled", PRO, small)


def test_shipped_peaks_are_measured() -> None:
    peaks = load_peaks(Path("/nonexistent"))
    assert peaks.find("denoise", PRO, W1) == (7_408_867_738, "measured")
    assert peaks.find("denoise", LITE, W1) == (3_045_636_608, "measured")
    assert peaks.find("decode_whole", LITE, W1)[1] == "computed"
    assert peaks.find("denoise", PRO, dataclasses.replace(W1, tail=True))[1] == "computed"


def test_a_recorded_peak_is_found_again_for_its_card_only(tmp_path: Path) -> None:
    assert record_peak("denoise", PRO, W1, 5 * GIB, card="A", folder=tmp_path)
    assert load_peaks(tmp_path, "A").find("denoise", PRO, W1) == (5 * GIB, "measured")
    assert load_peaks(tmp_path, "B").find("denoise", PRO, W1)[0] == 7_408_867_738
    assert load_peaks(tmp_path, "A").without_records().find("denoise", PRO, W1)[0] == 7_408_867_738


def test_only_a_higher_peak_is_written(tmp_path: Path) -> None:
    assert record_peak("denoise", PRO, W1, 5 * GIB, card="A", folder=tmp_path)
    assert not record_peak("denoise", PRO, W1, 4 * GIB, card="A", folder=tmp_path)
    assert record_peak("denoise", PRO, W1, 6 * GIB, card="A", folder=tmp_path)
    assert load_peaks(tmp_path, "A").recorded == {peak_key("denoise", PRO, W1): 6 * GIB}
    assert [path.name for path in tmp_path.iterdir()] == ["peaks.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"A": 3}'])
def test_a_damaged_record_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "peaks.json").write_text(text)
    assert load_peaks(tmp_path, "A").recorded == {}
    assert record_peak("text", PRO, W1, GIB, card="A", folder=tmp_path)


def test_a_clip_is_not_lost_for_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    record_peak("text", PRO, W1, GIB, card="A", folder=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"
    (tmp_path / "peaks.json").mkdir()
    record_peak("text", PRO, W1, GIB, card="A", folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "peaks.json"]


def test_a_second_branch_and_float32_take_more() -> None:
    guided = dataclasses.replace(W1, branches=2)
    wide = dataclasses.replace(W1, dtype="float32")
    assert computed_peak("denoise", PRO, guided) > computed_peak("denoise", PRO, W1)
    assert computed_peak("denoise", PRO, wide) == 2 * computed_peak("denoise", PRO, W1)
    assert Peaks().find("text", PRO, W1)[1] == "computed"
