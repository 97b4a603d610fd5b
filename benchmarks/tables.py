"""Tables: writes the rows under benchmarks/results into docs/measurements.md, between its two marks.

``python benchmarks/tables.py`` after new rows were added; ``--check`` only tells whether the page is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
KINDS = ("resident", "streamed", "offloaded")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "measurements.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = options.page.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    new = f"{head}{BEGIN}\n\n{tables(read_rows(options.results))}\n{END}{tail}"
    if options.check:
        sys.exit(None if new == text else f"{options.page} is not up to date: run python benchmarks/tables.py")
    options.page.write_text(new)


def read_rows(folder: Path) -> list[Row]:
    """The rows of all three scripts, failed ones too, by name."""
    files = [file for script in ("peers", "streaming", "clips") for file in folder.glob(f"{script}.*.json")]
    return [json.loads(file.read_text()) for file in sorted(files)]


def tables(rows: Sequence[Row]) -> str:
    """All tables in order; a sentence where there are no rows yet."""
    if not rows:
        return "No rows yet.\n"
    peers = [row for row in rows if row["script"] == "peers"]
    streaming = [row for row in rows if row["script"] == "streaming"]
    wholes = [row for row in rows if row["script"] == "clips"]
    parts = (_side_by_side(peers), _all_arms(peers), _streaming(streaming), _wholes(wholes))
    return "\n".join(part for part in parts if part)


def _side_by_side(rows: Sequence[Row]) -> str:
    """The fastest arm of each kind: resident, streamed, offloaded."""
    done = _one_run([row for row in rows if row["status"] == "ok"])
    if not done:
        return ""
    best = {kind: min((r for r in done if r["kind"] == kind), key=_step, default=None) for kind in KINDS}
    lines = [
        ("how", lambda row: row["arms"][0]),
        ("seconds a step", lambda row: f"{_step(row):.2f}"),
        ("seconds a step and block", lambda row: f"{row['medians']['step_seconds_per_block']:.4f}"),
        ("first step, seconds", lambda row: f"{row['medians']['first_step_seconds']:.1f}"),
        ("loading, seconds", lambda row: f"{row['medians']['load_seconds']:.1f}"),
        ("peak of card memory, GB", lambda row: _gigabytes(row["bytes"]["vram_peak_by_driver"])),
        ("peak of host memory, GB", lambda row: _gigabytes(row["bytes"]["host_peak"])),
        ("bits of the resident run", lambda row: _same(row, rows)),
    ]
    cells = [[label, *(_cell(best[kind], show) for kind in KINDS)] for label, show in lines]
    return f"## Resident, streamed, offloaded\n\n{_where(done[0])}\n\n{_table(('', *KINDS), cells)}"


def _one_run(rows: Sequence[Row]) -> list[Row]:
    """Rows of the commit that has most kinds: cards differ by a few per cent from day to day."""
    commits = sorted({row["commit"] for row in rows}, key=lambda c: len({r["kind"] for r in rows if r["commit"] == c}))
    return [row for row in rows if row["commit"] == commits[-1]] if rows else []


def _all_arms(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    cells = [_arm_line(row, rows) for row in rows]
    return "### All arms\n\n" + _table(
        ("arm", "kind", "s a step", "card GB", "host GB", "resident's bits", "commit"), cells
    )


def _arm_line(row: Row, rows: Sequence[Row]) -> list[str]:
    says, kind = row["arms"][0] if row["arms"] else row["row"], row.get("kind", "")
    if row["status"] != "ok":
        return [says, kind, f"failed: {row['reason']}", "", "", "", row["commit"][:7]]
    card, host = _gigabytes(row["bytes"]["vram_peak_by_driver"]), _gigabytes(row["bytes"]["host_peak"])
    return [says, kind, f"{_step(row):.2f}", card, host, _same(row, rows), row["commit"][:7]]


def _streaming(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    cells = [
        [row["row"], row["geometry"] or "", _values(row.get("medians") or {}), _targets(row)]
        if row["status"] == "ok"
        else [row["row"], "", f"failed: {row['reason']}", ""]
        for row in rows
    ]
    return f"## Streaming\n\n{_where(rows[0])}\n\n" + _table(("row", "geometry", "figures", "targets"), cells)


def _wholes(rows: Sequence[Row]) -> str:
    """Three clips of each engine, each number beside its plan's."""
    if not rows:
        return ""
    head = ("row", "clip", "s", "before step one, s", "a step, s", "decode, s", "card GB", "host GB", "same again")
    cells = [line for row in rows for line in _whole_lines(row)]
    return f"## Whole clips: measured (planned)\n\n{_where({**rows[0], 'blocks': None})}\n\n" + _table(head, cells)


def _whole_lines(row: Row) -> list[list[str]]:
    if row["status"] != "ok":
        return [[row["row"], f"failed: {row['reason']}", *[""] * 7]]
    plan, lines = row["plan"], []
    decode = sum(stage["seconds"] for stage in plan["stages"] if stage["stage"] in ("decode", "audio"))
    for clip, raw in zip(row["medians"]["clips"], row["raw_seconds"]["clips"], strict=True):
        lines.append(
            [
                row["row"], clip["name"], f"{clip['seconds']:.1f} ({clip['planned_seconds']:.1f})",
                f"{clip['seconds_before_denoising']:.1f}", f"{clip['step_seconds']:.2f} ({plan['step_seconds']:.2f})",
                f"{raw['stages']['seconds']['decode']:.1f} ({decode:.1f})",
                f"{_gigabytes(clip['card_peak_bytes'])} ({_gigabytes(plan['card_peak_bytes'])})",
                f"{_gigabytes(clip['host_peak_bytes'])} ({_gigabytes(plan['host_peak_bytes'])})",
                "yes" if row["medians"]["same_again"] else "no",
            ]
        )  # fmt: skip
    return lines


def _values(found: dict[str, Any]) -> str:
    """Numbers of a row, nested ones by arm; lists stay in the JSON."""
    parts = []
    for name, value in found.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            parts.append(f"{label}: " + ", ".join(f"{arm} {_number(number)}" for arm, number in value.items()))
        elif value is not None and not isinstance(value, list | str):
            parts.append(f"{label} {_number(value)}")
        elif name == "interval_95" and value:
            parts.append(f"interval 95 %: {value[0]:.4f} to {value[1]:.4f}")
    return "; ".join(parts)


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value).lower()
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value / 1e9:.2f} G"


def _targets(row: Row) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in (row.get("targets") or {}).items())


def _step(row: Row) -> float:
    return float(row["medians"]["step_seconds"])


def _same(row: Row, rows: Iterable[Row]) -> str:
    """Whether the latents are those of resident diffusers with its default attention."""
    like = next((r for r in rows if r["status"] == "ok" and r["row"].startswith("resident.")), None)
    if like is None:
        return "?"
    return "yes" if row["medians"]["digest"] == like["medians"]["digest"] else "no"


def _cell(row: Row | None, show: Callable[[Row], str]) -> str:
    return "not measured" if row is None else show(row)


def _gigabytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e9:.1f}"


def _where(row: Row) -> str:
    versions = row["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "cuda", "diffusers") if versions.get(name))
    blocks = f", {row['blocks']} fused blocks" if row.get("blocks") else ""
    place = f"{row['gpu']}, driver {row['driver']}, {named}; commit {row['commit'][:12]}"
    return f"{place}; {row['geometry'] or 'BF16'}{blocks}."


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    shown = [" | ".join(str(cell).replace("|", "/") for cell in line) for line in lines]
    rule = " | ".join("---" for _ in head)
    return "\n".join(f"| {line} |" for line in (" | ".join(head), rule, *shown)) + "\n"


if __name__ == "__main__":
    main()
