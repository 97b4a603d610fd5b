"""The fake device: streams run in every order that the real one may take, and never in one it may not."""

from __future__ import annotations

import pytest
import torch

from yellowsound.memory.device import Fence, InlineDevice, Stream, open_device
from yellowsound.memory.fake_device import POISON, FakeDevice

ORDERS = ("early", "late", "copies_first", "blocks_first", "random")


def outcome(order: str, seed: int, *, waits: bool) -> int:
    """What a block finds in a buffer that a copy writes before it, with or without a wait."""
    device = FakeDevice(order, seed)  # type: ignore[arg-type]
    buffer, source, found = device.alloc(1), torch.tensor([5], dtype=torch.uint8), []
    device.copy(buffer, source, Stream.COPY)
    mark = device.record(Stream.COPY, Fence.READY)
    if waits:
        device.wait(Stream.COMPUTE, mark, Fence.READY)
    device.run(lambda: found.append(int(buffer[0])), Stream.COMPUTE)
    device.drain()
    return found[0]


@pytest.mark.parametrize("order", ORDERS)
def test_a_wait_holds_in_every_order(order: str) -> None:
    assert {outcome(order, seed, waits=True) for seed in range(20)} == {5}


def test_without_the_wait_some_order_shows_it() -> None:
    assert {outcome(order, seed, waits=False) for order in ORDERS for seed in range(20)} == {5, POISON}


def test_the_same_seed_gives_the_same_order() -> None:
    runs = [[outcome("random", seed, waits=False) for seed in range(30)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_copy_reads_its_source_when_it_runs() -> None:
    device = FakeDevice("late")
    buffer, source = device.alloc(1), torch.tensor([1], dtype=torch.uint8)
    device.copy(buffer, source, Stream.COPY)
    source.fill_(2)
    device.drain()
    assert int(buffer[0]) == 2


def test_synchronize_runs_what_the_mark_needs_and_no_more() -> None:
    device, seen = FakeDevice("late"), []
    device.run(lambda: seen.append("copy"), Stream.COPY)
    copied = device.record(Stream.COPY, Fence.READY)
    device.run(lambda: seen.append("later copy"), Stream.COPY)
    device.wait(Stream.COMPUTE, copied, Fence.READY)
    device.run(lambda: seen.append("block"), Stream.COMPUTE)
    device.synchronize(device.record(Stream.COMPUTE, Fence.IDLE), Fence.IDLE)
    assert seen == ["copy", "block"]


def test_prompt_blocks_return_their_result() -> None:
    device = FakeDevice("late", prompt_blocks=True)
    buffer = device.alloc(1)
    device.copy(buffer, torch.tensor([4], dtype=torch.uint8), Stream.COPY)
    device.wait(Stream.COMPUTE, device.record(Stream.COPY, Fence.READY), Fence.READY)
    assert device.run(lambda: int(buffer[0]) + 1, Stream.COMPUTE) == 5


def test_what_is_retired_is_poisoned_in_its_stream() -> None:
    device = FakeDevice("late")
    buffer = device.alloc(2)
    device.run(lambda: buffer.fill_(1), Stream.COMPUTE)
    device.retire(buffer, Stream.COMPUTE)
    device.drain()
    assert buffer.eq(POISON).all()


def test_inline_does_everything_at_once() -> None:
    device = InlineDevice()
    buffer = device.alloc(3)
    device.copy(buffer, torch.tensor([1, 2, 3], dtype=torch.uint8), Stream.COPY)
    assert buffer.tolist() == [1, 2, 3]
    assert device.run(lambda: 7, Stream.COMPUTE) == 7
    assert device.record(Stream.COPY, Fence.READY) is None
    device.close()


def test_open_device_knows_cpu_and_cuda_only() -> None:
    assert isinstance(open_device("cpu"), InlineDevice)
    with pytest.raises(ValueError, match="only cpu and cuda"):
        open_device("meta")
