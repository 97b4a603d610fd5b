"""Draws the losses of a work folder's logs as one SVG: ``python plot.py WORK OUT.svg``."""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

WIDTH, HEIGHT, EDGE = 640, 300, 42
COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#34495e", "#d35400")


def curves(logs: Path) -> dict[str, list[tuple[float, float]]]:
    """(seconds, loss) by "stage loss" from all ``*.jsonl`` in ``logs``; what is not a loss is left out."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for file in sorted(logs.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            for name, value in entry.items():
                if name in ("picture", "kl", "mel", "spectra", "video", "audio") and value > 0 and math.isfinite(value):
                    found[f"{entry['stage']} {name}"].append((entry["seconds"], value))
    return dict(found)


def svg(found: dict[str, list[tuple[float, float]]]) -> str:
    """Lines over seconds, losses on a logarithmic axis, one colour and one line of legend a curve."""
    points = [p for curve in found.values() for p in curve]
    if not points:
        raise SystemExit("no losses found: train first")
    last = max(s for s, _ in points)
    low, high = (f(math.log10(v) for _, v in points) for f in (min, max))
    high = max(high, low + 0.1)

    def place(seconds: float, value: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * seconds / max(last, 1e-9)
        y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (math.log10(value) - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    lines = []
    for i, (name, curve) in enumerate(found.items()):
        colour = COLOURS[i % len(COLOURS)]
        lines.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(place(*p) for p in curve)}"/>')
        lines.append(f'<text x="{WIDTH - 150}" y="{16 + 14 * i}" fill="{colour}">{name}</text>')
    for value in range(math.ceil(low), math.floor(high) + 1):
        lines.append(f'<text x="4" y="{place(0, 10**value).split(",")[1]}">1e{value}</text>')
    lines.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 12}">{last:.0f} seconds</text>')
    look = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
    head = f'<svg {look} viewBox="0 0 {WIDTH} {HEIGHT}">'
    return "\n".join([head, *lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.write_text(svg(curves(arguments.work / "logs")))


if __name__ == "__main__":
    main()
