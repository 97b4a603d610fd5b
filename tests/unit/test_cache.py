"""The cache folder: files appear whole, the oldest go first, and a home that cannot be written is no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yellowsound.cache import cache_folder, keep_newest, write_whole


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", b"one") and (tmp_path / "a").read_bytes() == b"one"
    assert not write_whole(tmp_path / "missing" / "a", b"two")
    (tmp_path / "folder").mkdir()
    assert not write_whole(tmp_path / "folder", b"three")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "folder"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"x")
        os.utime(tmp_path / str(number), (number, number))
    keep_newest(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]
    keep_newest(tmp_path / "missing", 2)


def test_a_home_that_cannot_be_written_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert cache_folder("prompts") is None
