"""The smaller sessions: bound by the disk, equal to the bit, two guidance branches, and a model that stays resident."""

from __future__ import annotations

import gc
from statistics import median
from typing import Any

import torch
from common.clock import Timed, run_steps
from common.engines import Streamed, expected_seconds, load_streamed, make_plan, plan_summary, with_homes
from common.facts import process_memory
from common.results import say
from common.workload import Shape, load_scheduler, load_stock, make_latents, make_texts

from sessions import Context
from sessions.capped import START_SECONDS
from yellowsound.memory.plan import Plan
from yellowsound.memory.stack import predict
from yellowsound.memory.units import Home
from yellowsound.stages.denoise import Predict, predict_stock

DISK_STEPS, PAIR_STEPS = 2, 2
BLOCK_SECONDS = 0.165  # expected of one eager Pro block at 864x480x121 on an H200, for budgets only


def disk_bound(context: Context) -> None:
    """16 GB of card and 32 GB of host: some blocks come from the disk in every step."""
    note = context.place.trust_the_group()
    shape = context.shape()
    planned = make_plan(context.checkpoint, context.place, shape, 10)
    if context.is_smoke:
        planned = with_homes(planned, 1, 1, context.blocks - 2)
    first, step = expected_seconds(context.checkpoint, planned)
    expected = START_SECONDS + 1.1 * first + (DISK_STEPS + 0.5) * step
    say(f"plan: {plan_summary(planned)['blocks_by_home']}, {step:.1f} s a step expected, {first:.0f} s the first")
    context.measure("disk-bound", expected, lambda: {"note": note, **_disk_bound(context, planned, shape)})


def _disk_bound(context: Context, planned: Plan, shape: Shape) -> dict[str, Any]:
    streamed = load_streamed(context.checkpoint, context.place, planned)
    try:
        timed = run_steps(
            streamed.model, streamed.scheduler, streamed.latents(shape), streamed.texts(), DISK_STEPS + 1
        )  # fmt: skip
    finally:
        streamed.close()
    steps, speed = range(1, DISK_STEPS + 1), context.place.disk_bytes_per_second
    seconds = sum(timed.step_seconds[step] for step in steps) / DISK_STEPS
    outside = median(timed.step_seconds[s] - sum(timed.block_seconds[s]) - timed.gap_seconds[s] for s in steps)
    compute = median(sum(timed.block_seconds[step]) for step in steps) + outside
    read = planned.step_bytes[Home.DISK]
    bound = max(compute, read / speed if speed else 0.0)
    return {
        "geometry": shape.key,
        "arms": [f"streamed, warm, steps 2 to {DISK_STEPS + 1}"],
        "raw_seconds": timed.to_json(),
        "medians": {
            "step_seconds": seconds, "compute_seconds": compute, "disk_seconds": read / speed if speed else None,
            "bound_seconds": bound, "ratio": seconds / bound, "idle_share": timed.idle_share,
        },
        "bytes": {"planned_read_by_step": read, "read_by_step": timed.read_bytes, "process": process_memory()},
        "targets": {"ratio at most": 1.05},
        "plan": plan_summary(planned),
    }  # fmt: skip


def equality(context: Context) -> None:
    """Latents of resident diffusers and of a streamed run with all three homes, to the bit."""
    context.measure("two-steps", 30 + context.blocks * (2 + 4 * BLOCK_SECONDS), lambda: _equality(context))


def _equality(context: Context) -> dict[str, Any]:
    shape, place, third = context.shape(), context.place, max(context.blocks // 3, 1)
    latents = make_latents(context.checkpoint, shape, place.device, place.dtype)
    texts = make_texts(context.checkpoint, 1, place.text_tokens, place.device, place.dtype)
    planned = with_homes(
        make_plan(context.checkpoint, place, shape, 10, offload="block"), third, third, context.blocks - 2 * third
    )  # fmt: skip
    streamed = load_streamed(context.checkpoint, place, planned)
    ours = run_steps(streamed.model, streamed.scheduler, latents, texts, PAIR_STEPS)
    streamed.close()
    stock = load_stock(context.checkpoint, place.dtype).to(place.device)
    theirs = run_steps(stock, load_scheduler(context.checkpoint), latents, texts, PAIR_STEPS)
    pairs = [(ours.latents.video, theirs.latents.video), (ours.latents.audio, theirs.latents.audio)]
    differ = [
        0.0 if a is None or b is None else float((a.float() - b.float()).abs().max()) for a, b in pairs
    ]  # fmt: skip
    return {
        "geometry": shape.key,
        "arms": ["diffusers, resident", "streamed: a third of the blocks in each home"],
        "raw_seconds": {"resident": theirs.to_json(), "streamed": ours.to_json()},
        "medians": {
            "equal": ours.is_finite and theirs.is_finite and ours.digest == theirs.digest,
            "largest_difference": max(differ),
        },
        "bytes": {"read": ours.read_bytes, "copied": ours.copied_bytes},
        "targets": {"equal": True},
        "plan": plan_summary(planned),
    }


def lite(context: Context) -> None:
    """The small model on the 32 GB card: the plan keeps it resident."""
    shape = context.shape()
    planned = make_plan(context.checkpoint, context.place, shape, 10)
    context.measure("resident", 20 + 4 * planned.step_seconds, lambda: _lite(context, planned, shape))


def _lite(context: Context, planned: Plan, shape: Shape) -> dict[str, Any]:
    streamed = load_streamed(context.checkpoint, context.place, planned)
    timed = run_steps(streamed.model, streamed.scheduler, streamed.latents(shape), streamed.texts(), 4)
    streamed.close()
    before, least = context.free_before_bytes, timed.free_bytes
    denoise = next(stage for stage in planned.stages if stage.stage == "denoise")
    return {
        "geometry": shape.key,
        "arms": ["by plan: resident" if planned.is_resident else "by plan: streamed"],
        "raw_seconds": timed.to_json(),
        "medians": {
            "step_seconds": median(timed.step_seconds[1:]), "first_step_seconds": timed.step_seconds[0],
            "idle_share": timed.idle_share, "planned_step_seconds": planned.step_seconds,
        },
        "bytes": {
            "copied_after_lap_one": 0 if planned.is_resident else None, "copied": timed.copied_bytes,
            "vram_peak_by_driver": before - least if before is not None and least is not None else None,
            "vram_planned": denoise.vram_bytes,
        },
        "plan": plan_summary(planned),
    }  # fmt: skip


def guidance(context: Context) -> None:
    """Two branches a step: one weight pass for both (block-major) against one each; half the blocks on disk."""
    shape = context.shape(frames=125, guidance=5.0)
    half = context.blocks // 2
    planned = make_plan(context.checkpoint, context.place, shape, 10, offload="block")
    planned = with_homes(planned, 0, half, context.blocks - half)
    compute = 2 * context.blocks * BLOCK_SECONDS
    context.measure("block-major", 35 + 9 * compute, lambda: _guidance(context, planned, shape))


def _guidance(context: Context, planned: Plan, shape: Shape) -> dict[str, Any]:
    streamed = load_streamed(context.checkpoint, context.place, planned)
    try:
        cold = _pair(streamed, shape, 1, predict)
        runs = {"on": _pair(streamed, shape, PAIR_STEPS, predict)}
        gc.collect()
        runs["off"] = _pair(streamed, shape, PAIR_STEPS, predict_stock)
    finally:
        streamed.close()
    steps = {arm: median(run.step_seconds) for arm, run in runs.items()}
    return {
        "geometry": f"{shape.key}, guidance {shape.guidance:g}",
        "arms": ["on: both branches pass each block together", "off: one weight pass for each branch"],
        "raw_seconds": {"cold": cold.to_json(), **{arm: run.to_json() for arm, run in runs.items()}},
        "medians": {
            "step_seconds": steps, "on_over_off": steps["on"] / steps["off"],
            "equal": runs["on"].digest == runs["off"].digest and runs["on"].is_finite,
        },
        "bytes": {
            "copied": {arm: run.copied_bytes for arm, run in runs.items()},
            "read": {arm: sum(run.read_bytes) for arm, run in runs.items()},
            "vram_peak_by_torch": torch.cuda.max_memory_allocated() if context.place.device.type == "cuda" else None,
        },
        "plan": plan_summary(planned),
    }  # fmt: skip


def _pair(streamed: Streamed, shape: Shape, steps: int, ask: Predict) -> Timed:
    latents, texts = streamed.latents(shape), streamed.texts(2)
    return run_steps(streamed.model, streamed.scheduler, latents, texts, steps, guidance=shape.guidance, ask=ask)
