"""Statistics of mirrored runs, and shares of time: plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import mean, median, stdev
from typing import Any

# Student's t, two-sided 95 %, by degrees of freedom
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201}

Span = tuple[float, float]


def ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> dict[str, Any]:
    """B over A from mirrored runs: for every step position the mean of log B less that of log A, and a t interval.

    a, b: the step times of each arm's runs. Positions of one A B B A block share its drift, which the order removes;
    with one block they are the only repetitions there are, so the interval says how much steps scatter, not days.
    """
    positions = zip(zip(*a, strict=True), zip(*b, strict=True), strict=True)
    logs = [mean(map(math.log, theirs)) - mean(map(math.log, ours)) for ours, theirs in positions]
    half = T95[min(len(logs) - 1, 11)] * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    centre = mean(logs)
    interval = None if half is None else [math.exp(centre - half), math.exp(centre + half)]
    return {
        "unit": "step position within an A B B A block",
        "log_ratios": logs,
        "ratio": math.exp(centre),
        "interval_95": interval,
        "ratio_of_medians": median(s for run in b for s in run) / median(s for run in a for s in run),
        "noise_a": spread([sum(run) for run in a]),
        "noise_b": spread([sum(run) for run in b]),
    }


def spread(totals: Sequence[float]) -> float | None:
    """Largest over smallest total of equal runs, less one."""
    return max(totals) / min(totals) - 1 if len(totals) > 1 else None


def union(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, joined where they touch."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def common_length(one: Sequence[Span], other: Sequence[Span]) -> float:
    """Length of what lies in both of two joined lists."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
