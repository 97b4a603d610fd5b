"""What a terminal shows of a running clip: a live line, one line an event, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

from yellowsound.events import Event, Replanned, StageBegan, StageEnded, StepDone, Warned


class Display(Protocol):
    """Takes events of one clip after another; ``close`` leaves the terminal as it was."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Silent:
    """--quiet and --json: nothing."""

    def __call__(self, event: Event) -> None:
        """Take an event and say nothing."""

    def close(self) -> None:
        """Nothing to leave."""


class Lines:
    """For pipes and logs: one line an event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def __call__(self, event: Event) -> None:
        line = _line(event)
        if line:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Lines are complete by themselves."""


class Live:
    """For terminals: stage, step i of n, elapsed and the time left, on one line that is redrawn."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("load", total=None, count="", left="")

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageBegan):
            self._progress.update(self._task, description=event.stage, total=None, completed=0, count="", left="")
        elif isinstance(event, StepDone):
            remaining = event.seconds * (event.steps - event.step)
            self._progress.update(
                self._task,
                total=event.steps,
                completed=event.step,
                count=f"step {event.step} of {event.steps}",
                left=f"{_clock(remaining)} left",
            )
        elif isinstance(event, Warned | Replanned):
            self._progress.console.print(_line(event), markup=False, highlight=False)

    def close(self) -> None:
        """Remove the line."""
        self._progress.stop()


def choose(*, quiet: bool, json: bool) -> Display:
    """Silent when asked, live on a terminal, else one line an event."""
    if quiet or json:
        return Silent()
    return Live() if sys.stderr.isatty() else Lines()


def _line(event: Event) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    match event:
        case StageEnded(stage=stage, seconds=seconds):
            return f"{clock} {stage}: {seconds:.2f} s"
        case StepDone(step=step, steps=steps, seconds=seconds):
            return f"{clock} step {step} of {steps}: {seconds:.2f} s"
        case Warned(message=message):
            return f"{clock} warning: {message}"
        case Replanned(reason=reason):
            return f"{clock} re-planned: {reason}"
    return ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
