"""A streamed transformer gives the resident one's bits: every layout, steps, guidance, image, orders of the device."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from streaming_world import LAYOUTS, Clip, equal, make_clip, plan_of, run_in_turn, stock_transformer

from yellowsound.checkpoint import Checkpoint
from yellowsound.events import Cancelled, CancelToken, Event, Replanned
from yellowsound.memory.device import Fence
from yellowsound.memory.fake_device import FakeDevice
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.stack import close_streamed, driver_of, end_clip, predict, prefill, prepare_clip, set_cancel

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module", params=["sft", "distill"])
def checkpoint(request: pytest.FixtureRequest, tiny_sft: Path, tiny_distill: Path) -> Checkpoint:
    return Checkpoint.open({"sft": tiny_sft, "distill": tiny_distill}[request.param])


@pytest.fixture(scope="module")
def sft(tiny_sft: Path) -> Checkpoint:
    return Checkpoint.open(tiny_sft)


@torch.no_grad()
def run_streamed(model: Any, clip: Clip, *, prepared: bool = True) -> list[Any]:
    """Every step of the clip, its branches in one weight pass."""
    if prepared:
        prepare_clip(model, clip.timesteps, clip.branches)
    outputs = []
    for step in range(len(clip.timesteps)):
        outputs += predict(model, [clip.inputs(step, branch) for branch in range(len(clip.branches))])
    end_clip(model)
    return outputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", LAYOUTS)
def test_every_layout_gives_the_resident_bits(checkpoint: Checkpoint, pattern: str, dtype: torch.dtype) -> None:
    stock = stock_transformer(checkpoint.folder, dtype)
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, pattern), "cpu", dtype)
    for steps, guidance, image in ((1, True, False), (2, True, True), (3, False, False)):
        clip = make_clip(dtype, steps=steps, guidance=guidance, image=image, seed=steps)
        assert equal(run_streamed(model, clip), run_in_turn(stock, clip)), steps
    close_streamed(model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_that_nobody_announced_are_right_too(sft: Checkpoint, dtype: torch.dtype) -> None:
    stock = stock_transformer(sft.folder, dtype)
    model = load_streamed_transformer(sft, plan_of(sft, "VRD"), "cpu", dtype)
    clip, other = make_clip(dtype), make_clip(dtype, seed=9)
    expected = run_in_turn(stock, clip)
    assert equal(run_in_turn(model, clip), expected)
    assert equal(run_streamed(model, clip, prepared=False), expected)
    prepare_clip(model, other.timesteps, other.branches)
    assert equal(run_in_turn(model, clip), expected)
    assert equal(run_in_turn(model, other), run_in_turn(stock, other))
    close_streamed(model)


def test_without_sound_only_the_picture_is_computed(sft: Checkpoint) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    model = load_streamed_transformer(sft, plan_of(sft, "RD"), "cpu", torch.float32)
    clip = make_clip(torch.float32, audio=False)
    assert equal(run_streamed(model, clip), run_in_turn(stock, clip))
    close_streamed(model)


@pytest.mark.parametrize("order", ["early", "late", "copies_first", "blocks_first", "random"])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_copies_that_lag_or_lead_change_nothing(sft: Checkpoint, order: Any, slots: int) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    clip = make_clip(torch.float32, image=True)
    expected = run_in_turn(stock, clip)
    for seed in range(2):
        device = FakeDevice(order, seed, prompt_blocks=True)
        model = load_streamed_transformer(sft, plan_of(sft, "RDV", slots=slots), device, torch.float32)
        assert equal(run_streamed(model, clip), expected), seed
        close_streamed(model)


def test_a_missing_wait_shows_in_the_picture(sft: Checkpoint) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    clip = make_clip(torch.float32)
    device = FakeDevice("late", 0, prompt_blocks=True, omit=frozenset({Fence.READY}))
    model = load_streamed_transformer(sft, plan_of(sft, "RDV"), device, torch.float32)
    assert not equal(run_streamed(model, clip), run_in_turn(stock, clip))
    close_streamed(model)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_shells_have_one_graph_each(sft: Checkpoint, backend: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    clip = make_clip(torch.float32, steps=2, guidance=False)
    stock = stock_transformer(sft.folder, torch.float32)
    model = load_streamed_transformer(sft, plan_of(sft, "VRD"), "cpu", torch.float32)
    driver = driver_of(model)
    assert driver is not None
    driver.compile(backend=counter, fullgraph=True)
    assert equal(run_streamed(model, clip), run_in_turn(stock, clip))
    assert counter.frame_count == 3  # the fused block, the video text block, the audio text block
    close_streamed(model)
    torch._dynamo.reset()


def test_buffers_are_as_before(sft: Checkpoint) -> None:
    model = load_streamed_transformer(sft, plan_of(sft, "RDV"), "cpu", torch.bfloat16)
    before = _hash(model)
    run_streamed(model, make_clip(torch.bfloat16))
    assert _hash(model) == before
    tables = [buffer for name, buffer in model.named_buffers() if "angles" in name]
    assert len(tables) == 6
    assert all(table.dtype == torch.float32 and not table.is_meta for table in tables)
    close_streamed(model)


def _hash(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, buffer in model.named_buffers():
        digest.update(name.encode() + buffer.numpy().tobytes())
    return digest.hexdigest()


def test_stacks_and_shells_are_not_in_the_state_dict(sft: Checkpoint) -> None:
    model = load_streamed_transformer(sft, plan_of(sft, "D"), "cpu", torch.bfloat16)
    run_streamed(model, make_clip(torch.bfloat16))
    assert not [name for name in model.state_dict() if "_blocks." in name]
    assert (len(model.visual_transformer_blocks), model.config.num_visual_blocks) == (1, 4)
    assert model.dtype == torch.bfloat16
    close_streamed(model)


def test_a_warm_step_allocates_nothing_and_moves_the_planned_bytes(sft: Checkpoint) -> None:
    device = FakeDevice("random", 1, prompt_blocks=True)
    model = load_streamed_transformer(sft, plan_of(sft, "RD"), device, torch.bfloat16)
    clip = make_clip(torch.bfloat16, steps=3)
    prepare_clip(model, clip.timesteps, clip.branches)
    driver = driver_of(model)
    assert driver is not None
    with torch.no_grad():
        predict(model, [clip.inputs(0, 0), clip.inputs(0, 1)])
        visits, warm = driver.conveyor.counts.visits, list(device.allocated)
        predict(model, [clip.inputs(1, 0), clip.inputs(1, 1)])
    assert device.allocated == warm
    assert driver.conveyor.counts.visits - visits == 4  # one weight pass for both branches
    close_streamed(model)


def test_the_same_prompt_again_moves_no_once_a_clip_weights(sft: Checkpoint) -> None:
    model = load_streamed_transformer(sft, plan_of(sft, "R"), "cpu", torch.float32)
    clip = make_clip(torch.float32)
    first = run_streamed(model, clip)
    driver = driver_of(model)
    assert driver is not None
    visits = driver.conveyor.counts.visits
    copy = Clip(
        clip.timesteps.clone(), [tuple(_clone(t) for t in b) for b in clip.branches], clip.video, clip.audio, {}
    )  # type: ignore[misc]
    assert equal(run_streamed(model, copy), first)
    assert driver.conveyor.counts.visits - visits == 8  # two steps of four blocks
    close_streamed(model)


def _clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


@pytest.mark.parametrize("pattern", LAYOUTS)
def test_reading_ahead_changes_nothing(sft: Checkpoint, pattern: str) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    model = load_streamed_transformer(sft, plan_of(sft, pattern), "cpu", torch.float32)
    for seed in (1, 2):
        prefill(model)
        clip = make_clip(torch.float32, seed=seed)
        assert equal(run_streamed(model, clip), run_in_turn(stock, clip))
    prefill(model)
    close_streamed(model)


def test_a_cancel_stops_before_the_next_block(sft: Checkpoint) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    model = load_streamed_transformer(sft, plan_of(sft, "RDV"), "cpu", torch.float32)
    clip, token, seen = make_clip(torch.float32), CancelToken(), []
    prepare_clip(model, clip.timesteps, clip.branches)
    driver = driver_of(model)
    assert driver is not None

    def after_block(block: int, branch: int, output: Any) -> None:
        seen.append((block, branch))
        if (block, branch) == (1, 1):
            token.cancel()

    driver.seams.after_block = after_block
    set_cancel(model, token)
    with torch.no_grad(), pytest.raises(Cancelled):
        predict(model, [clip.inputs(0, 0), clip.inputs(0, 1)])
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    driver.seams.after_block = None
    end_clip(model)
    assert equal(run_streamed(model, clip), run_in_turn(stock, clip))  # half-hoisted results are completed
    close_streamed(model)


def test_memory_that_runs_short_slows_the_clip_and_keeps_the_bits(sft: Checkpoint) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    model = load_streamed_transformer(sft, plan_of(sft, "R"), "cpu", torch.float32)
    driver = driver_of(model)
    assert driver is not None
    events: list[Event] = []
    homes: list[list[str]] = []

    def hear(event: Event) -> None:
        events.append(event)
        homes.append([driver.conveyor.homes[name] for name in driver.course.blocks])

    wanted = iter([0, 2, 1])
    driver.seams.watch, driver.seams.on_event = lambda: next(wanted), hear
    clip = make_clip(torch.float32, steps=3)
    assert equal(run_streamed(model, clip), run_in_turn(stock, clip))
    assert homes == [["ram", "disk", "ram", "disk"], ["ram", "disk", "disk", "disk"]]  # spread over the lap
    assert [type(event) for event in events] == [Replanned, Replanned]
    assert "2 units" in events[0].reason  # type: ignore[attr-defined]
    close_streamed(model)


def test_a_plan_that_streams_nothing_has_no_slots_left(sft: Checkpoint) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    model = load_streamed_transformer(sft, plan_of(sft, "V", slots=0), "cpu", torch.float32)
    driver = driver_of(model)
    assert driver is not None
    assert driver.conveyor._slots == []
    clip = make_clip(torch.float32)
    assert equal(run_streamed(model, clip), run_in_turn(stock, clip))
    close_streamed(model)


def test_inference_mode_works(sft: Checkpoint) -> None:
    stock = stock_transformer(sft.folder, torch.float32)
    clip = make_clip(torch.float32)
    expected = run_in_turn(stock, clip)
    with torch.inference_mode():
        model = load_streamed_transformer(sft, plan_of(sft, "RDV"), "cpu", torch.float32)
        assert equal(run_streamed(model, clip), expected)
    assert equal(run_streamed(model, clip), expected)
    close_streamed(model)


def test_close_leaves_no_thread_and_no_file(sft: Checkpoint) -> None:
    threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    model = load_streamed_transformer(sft, plan_of(sft, "RDV"), "cpu", torch.float32)
    run_streamed(model, make_clip(torch.float32))
    assert threading.active_count() > threads
    close_streamed(model)
    close_streamed(model)
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) == files
