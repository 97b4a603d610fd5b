"""The main session: a 29 B model streamed on a card and a host with hard limits, against the same without copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from common.caps import charged_bytes, group_figures
from common.clock import Timed, run_steps, synchronize
from common.engines import Place, Streamed, expected_seconds, load_streamed, make_plan, plan_summary, with_homes
from common.facts import meminfo, process_memory, read_bytes
from common.overlap import traced
from common.results import say
from common.statistics import ratio
from common.workload import GIB, Shape

from sessions import Context
from yellowsound.memory.device import Fence, Stream, open_device
from yellowsound.memory.units import Home, total_bytes, units_of

STEPS, ORDER = 3, "ABBA"
START_SECONDS = 12  # interpreter, libraries, CUDA
ONE = GIB  # what the accounting pins each way


def run(context: Context) -> None:
    """All rows of the session, in order of importance."""
    note = context.place.trust_the_group()
    context.measure("memory", 15, lambda: {"note": note, **memory_row(context)})
    names = [name for name in context.session.rows if name != "memory" and context.wants(name)]
    if not names:
        return
    shapes = [context.shape(), context.shape(tail=True)]
    planned = make_plan(context.checkpoint, context.place, shapes[1], 10)  # the picture's is the largest of all
    if context.is_smoke:
        planned = with_homes(planned, 1, 2, context.blocks - 3)
    first, step = expected_seconds(context.checkpoint, planned)
    say(f"plan: {plan_summary(planned)['blocks_by_home']}, {step:.1f} s a step expected, {first:.0f} s the first")
    if START_SECONDS + first > context.results.seconds_left:
        say(f"lap one alone would take {first:.0f} s: nothing is begun")
        return
    streamed, loading = _load(context, planned)
    try:
        lap = first_lap(streamed, shapes[0], loading)
        context.measure("lap-one", 0, lambda: {"note": note, **lap})
        context.measure("abba", 4 * STEPS * step + 5, lambda: abba_row(context, streamed, shapes[0]))
        context.measure("overlap", 2 * step + 15, lambda: overlap_row(context, streamed, shapes[0]))
        small = context.shape(width=512, height=320, frames=25)
        context.measure("512x320x25", 15, lambda: shape_row(context, streamed, small, STEPS))
        context.measure("ten-steps", 10 * step + 5, lambda: shape_row(context, streamed, shapes[0], 10))
        context.measure("picture", 2.2 * step + 5, lambda: shape_row(context, streamed, shapes[1], 2))
        upright = context.shape(width=480, height=864)
        context.measure("480x864", 2.1 * step + 5, lambda: shape_row(context, streamed, upright, 2))
        context.measure("host-results", 5.5 * step, lambda: host_results_row(context, streamed, shapes[0]))
    finally:
        streamed.close()


def _load(context: Context, planned: Any) -> tuple[Streamed, dict[str, Any]]:
    read, began = read_bytes(), time.perf_counter()
    streamed = load_streamed(context.checkpoint, context.place, planned)
    return streamed, {"seconds": time.perf_counter() - began, "read_bytes": read_bytes() - read}


def memory_row(context: Context) -> dict[str, Any]:
    """What the caps are, how page-locked memory is charged, and the speeds that the plan is made with."""
    ways: dict[str, Callable[[], dict[str, Any]]] = {"registered": lambda: _pin_registered(context)}
    if context.place.device.type == "cuda":
        ways["torch"] = lambda: _pin_by_torch(context)
    return {
        "arms": sorted(ways),
        "bytes": {name: way() for name, way in ways.items()},
        "group": group_figures(context.place.group),
        "card_free_before_bytes": context.free_before_bytes,
        "host": {"mem_total_bytes": meminfo("MemTotal"), "mem_available_bytes": meminfo("MemAvailable")},
        "speeds": {
            "disk_bytes_per_second": context.place.disk_bytes_per_second,
            "link_bytes_per_second": context.place.link_bytes_per_second,
        },
    }


def _levels(context: Context) -> dict[str, int | None]:
    return {"group_bytes": charged_bytes(context.place.group), "available_bytes": meminfo("MemAvailable")}


def _pin_registered(context: Context) -> dict[str, Any]:
    """One GiB of mapped memory, registered; charged and available before, during and after."""
    device, before = open_device(context.place.device), _levels(context)
    began = time.perf_counter()
    block = device.alloc_host(ONE if not context.is_smoke else 1 << 20)
    block.populate()
    pinned = block.pin()
    seconds, during = time.perf_counter() - began, _levels(context)
    device.free(block)
    return {"pinned": pinned, "seconds": seconds, "before": before, "during": during, "after": _levels(context)}


def _pin_by_torch(context: Context) -> dict[str, Any]:
    before, began = _levels(context), time.perf_counter()
    block = torch.empty(ONE, dtype=torch.uint8, pin_memory=True).fill_(1)
    seconds, during = time.perf_counter() - began, _levels(context)
    del block
    torch._C._host_emptyCache()
    return {"pinned": True, "seconds": seconds, "before": before, "during": during, "after": _levels(context)}


def first_lap(streamed: Streamed, shape: Shape, loading: dict[str, Any]) -> dict[str, Any]:
    """The first step of a cold engine: every byte of the transformer comes from the disk, once."""
    timed = run_steps(streamed.model, streamed.scheduler, streamed.latents(shape), streamed.texts(), 1)
    seconds, read = loading["seconds"] + timed.wall_seconds, loading["read_bytes"] + timed.read_bytes[0]
    speed = streamed.place.disk_bytes_per_second
    least = None if not speed else read / speed
    stored = total_bytes(u for u in units_of(streamed.checkpoint).values() if u.component == "transformer")
    return {
        "geometry": shape.key,
        "arms": ["streamed, cold"],
        "raw_seconds": {"load": loading["seconds"], "first_step": timed.to_json()},
        "medians": {"seconds": seconds, "bytes_over_disk_speed": least, "ratio": seconds / least if least else None,
                    "compute_seconds": sum(map(sum, timed.block_seconds))},
        "bytes": {"read": read, "stored": stored, "copied": timed.copied_bytes,
                  "homes_as_planned": _turned(streamed) == [], "turned_to_disk": len(_turned(streamed))},
        "targets": {"ratio at most": 1.15},
        "plan": plan_summary(streamed.plan),
    }  # fmt: skip


def _turned(streamed: Streamed) -> list[str]:
    """Units that did not get the home they were planned."""
    planned = streamed.plan.homes
    return [name for name, home in streamed.conveyor.homes.items() if planned[name] is not Home(home)]


def abba_row(context: Context, streamed: Streamed, shape: Shape) -> dict[str, Any]:
    """Arm A computes with one resident block sixty times, arm B streams: A B B A, three steps each."""
    latents, texts = streamed.latents(shape), streamed.texts()
    runs: dict[str, list[Timed]] = {"A": [], "B": []}
    try:
        for arm in ORDER:
            synchronize(context.place.device)
            streamed.stand_still() if arm == "A" else streamed.stream()
            runs[arm].append(run_steps(streamed.model, streamed.scheduler, latents, texts, STEPS))
            say(f"arm {arm}: {[round(s, 3) for s in runs[arm][-1].step_seconds]} s")
    finally:
        streamed.stream()  # later rows of this process measure the streamed arm, whatever happened here
    compared = ratio([run.step_seconds for run in runs["A"]], [run.step_seconds for run in runs["B"]])
    walls = {arm: median(run.wall_seconds for run in timed) for arm, timed in runs.items()}
    return {
        "geometry": shape.key,
        "arms": ["A: every block bound to one resident block's weights, no copies", "B: streamed by plan"],
        "raw_seconds": {arm: [run.to_json() for run in timed] for arm, timed in runs.items()},
        "medians": {
            **compared,
            "step_seconds": {arm: median(s for run in timed for s in run.step_seconds) for arm, timed in runs.items()},
            "wall_seconds": walls,
            "idle_share": {arm: median(r.idle_share or 0.0 for r in timed) for arm, timed in runs.items()},
            "gap_share": {arm: median(r.gap_share or 0.0 for r in timed) for arm, timed in runs.items()},
        },
        "bytes": {**_memory(context, streamed, runs["B"]), "read": sum(sum(r.read_bytes) for r in runs["B"])},
        "targets": {"ratio at most": 1.01, "idle_share of B at most": 0.01, "read bytes": 0},
        "plan": plan_summary(streamed.plan),
    }


def overlap_row(context: Context, streamed: Streamed, shape: Shape) -> dict[str, Any]:
    """A profiler trace of one warm step."""
    latents, texts = streamed.latents(shape), streamed.texts()

    def one_step() -> Timed:
        return run_steps(streamed.model, streamed.scheduler, latents, texts, 1)

    timed, found = traced(one_step) if context.place.device.type == "cuda" else (one_step(), {"share": None})
    return {
        "geometry": shape.key,
        "arms": ["streamed, under the profiler"],
        "raw_seconds": timed.to_json(),
        "medians": found,
        "bytes": {"copied": timed.copied_bytes},
        "targets": {"share_of_copy_time_under_kernels at least": 0.95},
        "plan": plan_summary(streamed.plan),
    }


def shape_row(context: Context, streamed: Streamed, shape: Shape, steps: int) -> dict[str, Any]:
    """Some steps of a geometry on the homes that are there; ten steps are a whole clip's loop."""
    timed = run_steps(streamed.model, streamed.scheduler, streamed.latents(shape), streamed.texts(), steps)
    return {
        "geometry": shape.key,
        "arms": ["streamed, warm"],
        "raw_seconds": timed.to_json(),
        "medians": {
            "step_seconds": median(timed.step_seconds), "idle_share": timed.idle_share, "gap_share": timed.gap_share,
            "copy_bound_seconds": _copy_bound(streamed),
        },
        "bytes": {**_memory(context, streamed, [timed]), "read": sum(timed.read_bytes)},
        "plan": plan_summary(streamed.plan),
    }  # fmt: skip


def host_results_row(context: Context, streamed: Streamed, shape: Shape) -> dict[str, Any]:
    """Hoisted results in host memory, where long schedules with guidance need them; the first step makes them."""
    streamed.keep_results(Home.RAM)
    try:
        row = shape_row(context, streamed, shape, 4)
    finally:
        streamed.keep_results(streamed.plan.results_home)
    steps = row["raw_seconds"]["step_seconds"][1:]
    gaps = row["raw_seconds"]["gap_seconds_by_step"][1:]
    row["medians"] = {"step_seconds": median(steps), "gap_share": sum(gaps) / sum(steps)}
    return {**row, "arms": ["streamed, warm, results in host memory, steps 2 to 4"]}


def _copy_bound(streamed: Streamed) -> float | None:
    """Seconds that the link alone needs for one step's bytes."""
    moving = sum(size for home, size in streamed.plan.step_bytes.items() if home is not Home.VRAM)
    link = streamed.place.link_bytes_per_second
    return moving / link if link else None


def _memory(context: Context, streamed: Streamed, runs: list[Timed]) -> dict[str, Any]:
    """Peaks as measured and as planned, and what the host was charged."""
    is_cuda = context.place.device.type == "cuda"
    least = [run.free_bytes for run in runs if run.free_bytes is not None]
    before = context.free_before_bytes
    denoise = next(stage for stage in streamed.plan.stages if stage.stage == "denoise")
    return {
        "copied": [run.copied_bytes for run in runs],
        "vram_peak_by_driver": before - min(least) if least and before is not None else None,
        "vram_peak_by_torch": torch.cuda.max_memory_allocated() if is_cuda else None,
        "vram_reserved_by_torch": torch.cuda.max_memory_reserved() if is_cuda else None,
        "vram_planned": denoise.vram_bytes,
        "ram_planned": denoise.ram_bytes,
        "group": group_figures(context.place.group),
        "process": process_memory(),
    }


def with_link(context: Context) -> Place:
    """The place with the link's measured speed, where there is a link."""
    return replace(context.place, link_bytes_per_second=_measured_link(context))


def _measured_link(context: Context) -> float | None:
    """Bytes a second from registered memory to the device, by events around copies of one GiB."""
    if context.place.device.type != "cuda":
        return None
    device = open_device(context.place.device)
    block, target = device.alloc_host(ONE), device.alloc(ONE)
    block.populate()
    block.pin()
    device.copy(target, block.bytes, Stream.COPY)
    start = device.record(Stream.COPY, Fence.IDLE)
    device.synchronize(start, Fence.IDLE)
    began = time.perf_counter()
    for _ in range(8):
        device.copy(target, block.bytes, Stream.COPY)
    device.synchronize(device.record(Stream.COPY, Fence.IDLE), Fence.IDLE)
    speed = 8 * ONE / (time.perf_counter() - began)
    device.free(block)
    device.close()
    del target
    torch.cuda.empty_cache()
    return speed
