"""Hoisted results are diffusers' own rows, found by call, and live in the home the plan gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from streaming_world import equal, make_clip, plan_of, run_in_turn, stock_transformer

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.device import InlineDevice
from yellowsound.memory.hoist import Branch, Hoist, Store, time_embeds
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.stack import close_streamed, driver_of, predict, prepare_clip
from yellowsound.memory.units import Home


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_what_each_block_computes_for_itself(tiny_sft: Path, dtype: torch.dtype) -> None:
    stock = stock_transformer(tiny_sft, dtype)
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, "RD"), "cpu", dtype)
    clip = make_clip(dtype, steps=3)
    seen: dict[str, list[torch.Tensor]] = {}
    names = ("video_dec_block.visual_modulation", "audio_dec_block.visual_modulation", "va_modulation", "av_modulation")
    hooks = [
        stock.get_submodule(f"visual_transformer_blocks.2.{name}").register_forward_hook(
            lambda _m, _i, out, name=name: seen.setdefault(name, []).append(out)
        )
        for name in names
    ]
    run_in_turn(stock, clip)
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        prepare_clip(model, clip.timesteps, clip.branches)
        predict(model, [clip.inputs(0, 0), clip.inputs(0, 1)])
    driver = driver_of(model)
    assert driver is not None and driver._hoist is not None
    for column, name in enumerate(names):
        for step in range(3):
            for branch in range(2):
                expected = seen[name][step * 2 + branch]
                assert torch.equal(driver._hoist.modulation(2, column, step, branch), expected), (name, step)
    close_streamed(model)


def test_stacked_rows_would_not_be_exact(tiny_sft: Path) -> None:
    """Why rows are computed one at a time: a product of several rows has other bits in float32."""
    stock = stock_transformer(tiny_sft, torch.float32)
    clip = make_clip(torch.float32, steps=3)
    with torch.no_grad():
        rows = torch.cat([video for video, _ in time_embeds(stock, clip.timesteps, [Branch(*clip.branches[0])])])
        blocks = stock.visual_transformer_blocks
        modulations = [block.video_dec_block.visual_modulation for block in blocks]
        assert any(
            not torch.equal(module(rows), torch.cat([module(row[None]) for row in rows])) for module in modulations
        )


def hoist_of(timesteps: torch.Tensor, branches: list[Branch]) -> Hoist:
    return Hoist(timesteps, branches, [], [], [])


def branch(seed: int, mask: torch.Tensor | None = None) -> Branch:
    generator = torch.Generator().manual_seed(seed)
    return Branch(torch.randn(1, 4, 8, generator=generator), torch.randn(1, 6, generator=generator), mask)


def test_a_call_is_found_by_where_its_tensors_lie() -> None:
    times, one, two = torch.tensor([999.0, 500.0, 20.0]), branch(1, torch.ones(1, 4, dtype=torch.bool)), branch(2)
    hoist = hoist_of(times, [one, two])
    assert hoist.row_of(times[1].expand(1), one) == (1, 0)
    assert hoist.row_of(times[2].expand(1), two) == (2, 1)
    assert hoist.row_of(torch.tensor([20.0]), two) == (2, 1)  # by value, if the tensor is another
    assert hoist.row_of(torch.tensor([21.0]), two) is None
    assert hoist.row_of(times[0].expand(1), Branch(one.tokens.clone(), one.pooled, one.mask)) is None
    assert hoist.row_of(times[0].expand(1), Branch(one.tokens, one.pooled, None)) is None


def test_results_hold_for_an_equal_clip_only() -> None:
    times, one = torch.tensor([999.0, 500.0]), branch(1)
    hoist = hoist_of(times, [one])
    assert hoist.is_for(times.clone(), [branch(1)])
    assert not hoist.is_for(times + 1, [one])
    assert not hoist.is_for(times[:1], [one])
    assert not hoist.is_for(times, [branch(2)])
    assert not hoist.is_for(times, [one, one])
    assert not hoist.is_for(times, [branch(1, torch.ones(1, 4, dtype=torch.bool))])


@pytest.mark.parametrize("home", [Home.RAM, Home.VRAM])
def test_results_live_where_the_plan_says(tiny_sft: Path, home: Home) -> None:
    stock = stock_transformer(tiny_sft, torch.float32)
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, "D", results_home=home), "cpu", torch.float32)
    driver = driver_of(model)
    assert driver is not None
    for seed, steps in ((1, 2), (2, 3), (3, 1)):  # longer, then shorter: the memory grows once and is used again
        clip = make_clip(torch.float32, steps=steps, seed=seed)
        with torch.no_grad():
            prepare_clip(model, clip.timesteps, clip.branches)
            outputs = [o for s in range(steps) for o in predict(model, [clip.inputs(s, 0), clip.inputs(s, 1)])]
        assert equal(outputs, run_in_turn(stock, clip))
    assert isinstance(driver._store._memory, torch.Tensor) == (home is Home.VRAM)
    close_streamed(model)


def test_the_store_hands_out_aligned_pieces_and_refuses_more() -> None:
    store = Store(InlineDevice(), on_device=False)
    store.reset(1024)
    first, second = store.take((3, 5), torch.float32), store.take((7,), torch.bfloat16)
    assert second.data_ptr() - first.data_ptr() == 512
    with pytest.raises(MemoryError, match="results need"):
        store.take((512,), torch.float32)
    store.close()
