"""Speeds: what was measured here of disk, link and block time, kept so that the next plan need not assume them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from yellowsound.memory.machine import Machine, Rates
from yellowsound.memory.records import read_records, record_file, write_records

FILE = "speeds.json"
_FIELDS = ("disk_bytes_per_second", "link_bytes_per_second", "block_seconds")


def with_measured(
    machine: Machine, *, disk: float | None = None, link: float | None = None, block: float | None = None
) -> Machine:
    """The machine with measured values in place of assumed ones.

    disk, link: bytes a second as reached, not derated. block: of one fused Pro block at 864x480x121.
    """
    assumed = {"disk": disk, "link": link}
    notes = tuple(n for n in machine.notes if not any(v and f"a {word} of" in n for word, v in assumed.items()))
    rates = machine.rates if block is None else _with_block(machine.rates, block)
    return replace(
        machine,
        disk_bytes_per_second=disk or machine.disk_bytes_per_second,
        link_bytes_per_second=link or machine.link_bytes_per_second,
        rates=rates,
        notes=notes,
    )


def _with_block(rates: Rates, seconds: float) -> Rates:
    return replace(rates, block_seconds=seconds, basis="measured", lite_block_seconds=None)


def record_speeds(
    machine: Machine,
    *,
    disk: float | None = None,
    link: float | None = None,
    block: float | None = None,
    folder: Path | None = None,
) -> None:
    """Keep measured speeds under the machine's name; values that are None stay as they were."""
    path = record_file(FILE, folder)
    records = read_records(path)
    row = records.setdefault(machine.name, {})
    row.update({field: value for field, value in zip(_FIELDS, (disk, link, block), strict=True) if value})
    write_records(path, records)


def recall_speeds(machine: Machine, folder: Path | None = None) -> Machine:
    """The machine with the speeds that an earlier run recorded under its name."""
    row = read_records(record_file(FILE, folder)).get(machine.name, {})
    disk, link, block = (_speed(row.get(field)) for field in _FIELDS)
    return with_measured(machine, disk=disk, link=link, block=block)


def _speed(value: object) -> float | None:
    good = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if good else None  # type: ignore[arg-type]
