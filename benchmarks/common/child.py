"""Child: a session in a process of its own, under the caps that it asks for. Files are written from outside of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from common.caps import group_figures, small_card, small_host, start_touching
from common.results import Results, say

if TYPE_CHECKING:
    from sessions import Session

GRACE_SECONDS = 20  # a session that outlives the budget by this is stopped; its finished rows stay
COMMON = ("results", "archive", "data", "commit", "rows")


def add_child_options(parser: argparse.ArgumentParser) -> None:
    """What the outer call takes for its children, and what it tells them."""
    parser.add_argument("--touch-gib", type=int, default=64, help="host memory to use once beforehand; 0: none")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--card-free", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=Path, help=argparse.SUPPRESS)


def run_sessions(
    script: str,
    known: Mapping[str, Session],
    results: Results,
    inside: Callable[[Session, Results], None],
    passed: Sequence[str],
    least_seconds: float,
) -> None:
    """The sessions asked for that lack a row, while at least so much time is left; a smoke run makes no children."""
    for name in results.options.sessions.split(","):
        session = known[name]
        if results.seconds_left < least_seconds:
            say(f"session {name}: left out, {results.seconds_left:.0f} s left")
        elif any(results.is_wanted(session.row(row)) for row in session.rows):
            inside(session, results) if results.options.smoke else in_child(script, session, results, passed)


def in_child(script: str, session: Session, results: Results, passed: Sequence[str]) -> None:
    """Weights and caps first, then ``script --inside`` with the common options and those named in ``passed``."""
    options = results.options
    say(f"session {session.name}: {session.weights.name}, about {session.seconds:.0f} s")
    with ExitStack() as stack:
        try:
            toucher, options.touch_gib = start_touching(options.touch_gib), 0  # once a call
            card = stack.enter_context(small_card(session.card_bytes))
            session.weights.folder(options.data)
            if toucher is not None:
                toucher.wait()
            group = stack.enter_context(small_host(session.host_bytes, session.name))
            _run(script, session, results, (*COMMON, *passed), card, group)
        except (OSError, RuntimeError) as error:
            say(f"session {session.name} was not begun: {error}")


def _run(
    script: str, session: Session, results: Results, passed: Sequence[str], card: int | None, group: Path | None
) -> None:
    options = results.options
    command = [sys.executable, script, "--inside", session.name, "--until", str(options.until)]
    for name in passed:
        value = getattr(options, name)
        command += [f"--{name.replace('_', '-')}={value}"] if value else []
    command += [f"--card-free={card}"] if card else []
    command += [f"--group={group}"] if group else []
    try:
        done = subprocess.run(command, timeout=max(results.seconds_left, 0) + GRACE_SECONDS)
        ended = f"ended with {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        ended = "was stopped: its time was up"
    if ended:
        say(f"session {session.name} {ended}; memory group: {group_figures(group)}")
        for row in session.rows:
            if results.is_wanted(session.row(row)) and not results.path(session.row(row)).exists():
                results.write(session.row(row), {"status": "failed", "reason": f"the session {ended}"})
                break
