"""Giving host memory back: when it is asked for, and how much."""

from __future__ import annotations

from pathlib import Path

import pytest

from yellowsound.memory.budget import GIB
from yellowsound.memory.relief import shortfall


@pytest.mark.parametrize(("available", "wanted"), [(3.0, 0), (2.1, 0), (1.5, 2.5), (0.0, 4.0)])
def test_memory_is_asked_back_when_half_of_the_reserve_is_gone(tmp_path: Path, available: float, wanted: float) -> None:
    (tmp_path / "proc").mkdir()
    text = f"MemTotal: {32 << 20} kB\nMemAvailable: {int(available * (1 << 20))} kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    assert shortfall(tmp_path) == pytest.approx(wanted * GIB, abs=2048)
