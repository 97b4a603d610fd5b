"""A run's peaks on a card: stages are measured one by one, and the clip's own peak outlives every reset."""

from __future__ import annotations

import pytest
import torch

from yellowsound.run import Run


class FakeAllocator:
    """torch.cuda's counters, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = self.highest = 0
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: setattr(self, "highest", self.held))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.held)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.highest)

    def move(self, size: int) -> None:
        self.held += size
        self.highest = max(self.highest, self.held)


def test_a_stage_is_told_what_it_took_and_the_clip_keeps_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    card, noted = FakeAllocator(monkeypatch), list[int]()
    run = Run(None, None, torch.device("cuda"))
    card.move(100)  # weights
    with run.noting_peak(noted.append):
        card.move(70)
        card.move(-70)
    card.move(-90)
    with run.noting_peak(noted.append):
        card.move(30)
        card.move(-5)
    assert noted == [70, 30]
    assert run.peaks()["peak_vram_bytes"] == 170


def test_a_stage_that_failed_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    card, noted = FakeAllocator(monkeypatch), list[int]()
    run = Run(None, None, torch.device("cuda"))
    with pytest.raises(ValueError), run.noting_peak(noted.append):
        card.move(10)
        raise ValueError
    assert noted == [] and run.peaks()["peak_vram_bytes"] == 10


def test_without_a_card_nothing_is_noted() -> None:
    noted: list[int] = []
    run = Run(None, None, torch.device("cpu"))
    with run.noting_peak(noted.append):
        pass
    assert noted == [] and run.peaks()["peak_vram_bytes"] == 0
