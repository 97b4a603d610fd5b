"""Overlap: a profiler trace of one step, and how much of its copy time ran under kernels."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common.statistics import Span, common_length, length, union

LARGE_BYTES = 1 << 20  # rows that are looked up are copied too; they are not weights


def traced(run: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """What ``run`` returns, and the figures of its trace: needs a CUDA device."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        result = run()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return result, figures(json.loads(file.read_text())["traceEvents"])


def figures(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Union of kernels, union of host-to-device copies of weights, what they share. Times in seconds."""
    kernels = union(_span(event) for event in events if event.get("cat") == "kernel")
    copies = [event for event in events if _is_weight_copy(event)]
    copied = union(_span(event) for event in copies)
    total, shared = length(copied), common_length(kernels, copied)
    size = sum(int(event["args"]["bytes"]) for event in copies)
    every = [*kernels, *copied]
    span = max(end for _, end in every) - min(start for start, _ in every) if every else 0.0
    return {
        "kernel_seconds": length(kernels) / 1e6,
        "copy_seconds": total / 1e6,
        "shared_seconds": shared / 1e6,
        "share_of_copy_time_under_kernels": shared / total if total else None,
        "kernel_share_of_trace": length(kernels) / span if span else None,
        "copies": len(copies),
        "copied_bytes": size,
        "copy_bytes_per_second": size / total * 1e6 if total else None,
        "copies_from_pageable_memory": sum("Pageable" in event["name"] for event in copies),
        "kernels": sum(event.get("cat") == "kernel" for event in events),
    }


def _span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _is_weight_copy(event: dict[str, Any]) -> bool:
    if event.get("cat") != "gpu_memcpy" or "HtoD" not in event.get("name", ""):
        return False
    return int(event.get("args", {}).get("bytes", 0)) >= LARGE_BYTES
