"""yellowsound doctor: this machine in a few lines, and what to do about what is missing."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from yellowsound.measure.doctor import Line

EXIT_MISSING = 1
_MARKS = {"ok": "ok", "note": "note", "missing": "MISSING"}


def doctor(*, disk: Path | None = None, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Look at this machine: card, driver, torch, memory and its limits, links, packages. One line each.

    Exit code 1 when something is missing that stops clips or the use of the card.

    Parameters
    ----------
    disk
        Also measure how fast this folder's disk reads (O_DIRECT, a few seconds; writes and removes 1 GiB there unless
        it holds larger weight files), and keep the result for ``yellowsound plan``.
    json
        One JSON document on stdout, nothing else.
    """
    from dataclasses import asdict

    from yellowsound.measure.doctor import look

    lines = look()
    if disk is not None:
        lines.append(measured(disk))
    if json:
        print(json_module.dumps([asdict(line) for line in lines], indent=2))
    else:
        for line in lines:
            remedy = f": {line.remedy}" if line.remedy else ""
            print(f"{_MARKS[line.state]:8}{line.what:16}{line.value}{remedy}")
    if any(line.state == "missing" for line in lines):
        sys.exit(EXIT_MISSING)


def measured(place: Path) -> Line:
    """Measure the disk of ``place`` and keep the speed for the planner."""
    from yellowsound.measure.disk_speed import disk_speed
    from yellowsound.measure.doctor import Line
    from yellowsound.memory.probe import this_machine
    from yellowsound.memory.speeds import record_speeds

    found = disk_speed(place)
    value = f"{found.bytes_per_second / 1e9:.2f} GB/s over {found.read_bytes / 1e9:.2f} GB of {found.file}"
    if not found.is_direct:
        return Line("disk", "note", f"{value}, through the page cache", "this file system refuses O_DIRECT")
    record_speeds(this_machine(), disk=found.bytes_per_second)
    return Line("disk", "ok", value)
