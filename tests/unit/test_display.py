"""What a terminal, a pipe and a script see of a running clip."""

from __future__ import annotations

import io
import sys

import pytest

from yellowsound.cli.display import Lines, Live, Silent, choose
from yellowsound.events import Replanned, StageBegan, StageEnded, StepDone, Warned

EVENTS = [
    StageBegan(stage="denoise"),
    StepDone(step=1, steps=4, seconds=30.0),
    Warned(message="distilled: 10 recommended"),
    Replanned(reason="short of memory"),
    StageEnded(stage="denoise", seconds=120.0),
]


def test_lines_tell_one_event_each() -> None:
    stream = io.StringIO()
    display = Lines(stream)
    for event in EVENTS:
        display(event)
    lines = stream.getvalue().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "step 1 of 4: 30.00 s",
        "warning: distilled: 10 recommended",
        "re-planned: short of memory",
        "denoise: 120.00 s",
    ]


def test_live_shows_stage_step_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    display = Live()
    for event in EVENTS[:2]:
        display(event)
    [task] = display._progress.tasks
    display.close()
    assert task.description == "denoise" and task.completed == 1 and task.total == 4
    assert task.fields["count"] == "step 1 of 4" and task.fields["left"] == "1:30 left"


def test_the_choice_follows_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose(quiet=True, json=False), Silent)
    assert isinstance(choose(quiet=False, json=True), Silent)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert isinstance(choose(quiet=False, json=False), Lines)
