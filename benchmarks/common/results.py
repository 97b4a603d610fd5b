"""Rows: one JSON file per measurement, written as soon as it is finished, skipped when it is there already.

A row that fails is written too, with its reason, and tried again by the next call. A row whose expected time no longer
fits into the budget is left out and said so. Nothing that is finished can be lost by what comes after it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT
from common.facts import facts

FIELDS = ("row", "script", "status", "command", "commit", "created", "gpu", "driver", "versions", "host", "geometry",
          "arms", "raw_seconds", "medians", "bytes", "plan")  # fmt: skip
COMMAND = "YELLOWSOUND_BENCH_COMMAND"  # how the outermost script was called
Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder of JSON rows")
    parser.add_argument("--archive", type=Path, help="keep a .tar.gz of the results here, renewed after each row")
    parser.add_argument("--data", type=Path, default=Path("/tmp/yellowsound-bench"), help="folder of synthetic weights")
    parser.add_argument("--commit", help="commit to name in the rows, where there is no git checkout")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no row that would end later than this")
    parser.add_argument("--rows", default="", help="only rows that contain one of these words, separated by commas")
    parser.add_argument("--smoke", action="store_true", help="a tiny checkpoint on the CPU: shows that it runs")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # for children: the deadline


@dataclass(slots=True)
class Results:
    """The results folder of one script, and the time it may use."""

    script: str
    options: argparse.Namespace
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.options.until = self.options.until or time.time() + 60 * self.options.minutes
        os.environ.setdefault(COMMAND, shlex.join(["python", *sys.argv]))

    @property
    def seconds_left(self) -> float:
        return float(self.options.until - time.time())

    def path(self, row: str) -> Path:
        return Path(self.options.results) / f"{self.script}.{row}.json"

    def read(self, row: str) -> Row | None:
        """A finished row; None if it is missing or failed."""
        try:
            found: Row = json.loads(self.path(row).read_text())
        except (OSError, ValueError):
            return None
        return found if found.get("status") == "ok" else None

    def is_wanted(self, row: str) -> bool:
        """Asked for by ``--rows`` and not there yet."""
        words = [word for word in self.options.rows.split(",") if word]
        return (not words or any(word in row for word in words)) and self.read(row) is None

    def measure(self, row: str, expected_seconds: float, make: Callable[[], Row]) -> Row | None:
        """Make, write and return a row, unless it is there, not asked for, or would take too long."""
        if not self.is_wanted(row):
            say(f"{row}: already there or not asked for")
            return self.read(row)
        if expected_seconds > self.seconds_left:
            self.left_out.append(row)
            say(f"{row}: left out, about {expected_seconds:.0f} s of {self.seconds_left:.0f} s left")
            return None
        say(f"{row}: about {expected_seconds:.0f} s")
        began = time.time()
        try:
            made = {"status": "ok", **make()}
        except Exception as error:
            traceback.print_exc()
            made = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
        made["took_seconds"] = time.time() - began
        return self.write(row, made)

    def write(self, row: str, made: Row) -> Row:
        """Complete a row with what every row says, and put it into the folder at once."""
        empty = {name: None for name in FIELDS}
        command = os.environ[COMMAND]
        known = {"row": row, "script": self.script, "command": command, **facts(self.options.commit)}
        whole = {**empty, **known, **made}
        path = self.path(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".partial")
        temporary.write_text(json.dumps(whole, indent=1) + "\n")
        temporary.replace(path)
        self._pack()
        said = "done" if whole["status"] == "ok" else f"failed: {whole.get('reason')}"
        say(f"{row}: {said} after {whole.get('took_seconds', 0):.1f} s")
        return whole

    def rows(self) -> list[Row]:
        """All rows of this script, oldest first."""
        found = [json.loads(path.read_text()) for path in self.options.results.glob(f"{self.script}.*.json")]
        return sorted(found, key=lambda row: str(row["created"]))

    def _pack(self) -> None:
        if self.options.archive is None:
            return
        temporary = self.options.archive.with_name(f".{self.options.archive.name}.partial")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(temporary, "w:gz") as pack:
            for path in sorted(self.options.results.glob("*.json")):
                pack.add(path, path.name)
        temporary.replace(self.options.archive)


def say(line: str) -> None:
    """Progress goes to stderr; stdout has the table."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def print_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Columns as wide as their widest cell."""
    cells = [list(head), *(list(line) for line in lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    for number, line in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def shown(value: object, form: str = ".3f") -> str:
    """A number for the table, or a dash."""
    return format(value, form) if isinstance(value, int | float) else "-"
