"""Rows of a step: where the pieces lie, and that the device sees the right ones whatever order copies run in."""

from __future__ import annotations

import pytest
import torch

from yellowsound.memory.device import Fence, Stream
from yellowsound.memory.fake_device import POISON, FakeDevice, Order
from yellowsound.memory.rows import RowLayout, StepRows

ORDERS: tuple[Order, ...] = ("early", "late", "copies_first", "blocks_first", "random")
ROW_FENCES = (Fence.ROWS_FREE, Fence.ROWS_READY)
STEPS, BRANCHES, BYTES = 5, 2, 64


def test_pieces_lie_apart_and_aligned() -> None:
    layout = RowLayout(torch.bfloat16, {"video": (1, 3, 8), "audio": (1, 3, 4)}, ((1, 300), (1, 4)), blocks=2)
    row = torch.zeros(layout.size_bytes, dtype=torch.uint8)
    pieces = [layout.text(row, tower) for tower in ("video", "audio")]
    pieces += [layout.modulation(row, block, column) for block in range(2) for column in range(2)]
    starts = [piece.data_ptr() - row.data_ptr() for piece in pieces]
    assert starts == [0, 512, 1024, 2048, 2560, 3584] and layout.size_bytes == 4096
    assert [tuple(piece.shape) for piece in pieces] == [(1, 3, 8), (1, 3, 4), (1, 300), (1, 4), (1, 300), (1, 4)]
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    assert all(bool((piece == number).all()) for number, piece in enumerate(pieces))


def walk(device: FakeDevice, sequence: tuple[int, ...] = tuple(range(STEPS))) -> list[int]:
    """Make the rows on the compute stream, then look each step's up there; returns the steps that saw other bytes."""
    homes = [torch.full((BRANCHES, BYTES), POISON, dtype=torch.uint8) for _ in range(STEPS)]
    for step in range(STEPS):
        device.run(lambda step=step: homes[step].fill_(step + 1), Stream.COMPUTE)
    rows, seen = StepRows(device), []
    for step in sequence:
        rows.enter(step, STEPS, lambda s: list(homes[s]))
        found = rows.get(step)
        assert found is not None and rows.get(step + 1) is None
        for _ in range(3):  # several looks, as several blocks take them
            device.run(lambda step=step, found=found: seen.append((step, torch.stack(found).clone())), Stream.COMPUTE)
    device.drain()
    rows.close()
    return [step for step, bytes_ in seen if not bool((bytes_ == step + 1).all())]


@pytest.mark.parametrize("order", ORDERS)
def test_every_step_sees_its_own_rows(order: Order) -> None:
    for seed in range(20):
        assert walk(FakeDevice(order, seed)) == []
        assert walk(FakeDevice(order, seed), (1, 2, 4, 0, 1)) == []  # a loop may begin late, skip or begin again


@pytest.mark.parametrize("fence", ROW_FENCES)
def test_without_either_wait_or_record_rows_go_wrong(fence: Fence) -> None:
    for omitted in ({"omit": frozenset({fence})}, {"unrecorded": frozenset({fence})}):
        assert any(walk(FakeDevice(order, seed, **omitted)) for order in ORDERS for seed in range(20)), omitted


def test_closing_gives_the_memory_back_and_rows_can_be_brought_again() -> None:
    device = FakeDevice("early")
    rows = StepRows(device)
    home = torch.ones(1, BYTES, dtype=torch.uint8)
    for _ in range(2):
        rows.enter(0, 2, lambda _step: list(home))
        assert rows.get(0) is not None
        rows.close()
        assert rows.get(0) is None
    assert device.allocated == [BYTES] * 4
