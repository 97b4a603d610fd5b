"""Host blocks: aligned, page-locked at their exact size, given back in order; a refusal leaves them pageable."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path

import pytest
import torch

from yellowsound.memory.pinned import HUGE_BYTES, HostBlock, LimitedRegistrar, PinWhenFull, probe_pin_limit

MIB = 1 << 20


def _huge_pages_on_request() -> bool:
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


def _huge_bytes(address: int, size_bytes: int) -> int:
    """Of the mappings that hold [address, address + size): how many bytes are in huge pages."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) < address + size_bytes and int(found[2], 16) > address
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1]) * 1024
    return total


class Registrar:
    """Accepts up to ``limit_bytes`` and remembers what is registered."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.registered: dict[int, int] = {}
        self.refusals = 0

    def register(self, address: int, size_bytes: int) -> bool:
        if sum(self.registered.values()) + size_bytes > self.limit_bytes:
            self.refusals += 1
            return False
        self.registered[address] = size_bytes
        return True

    def unregister(self, address: int) -> None:
        del self.registered[address]


def test_a_block_is_aligned_to_huge_pages_and_zero() -> None:
    block = HostBlock(3 * MIB + 17)
    assert block.address % HUGE_BYTES == 0 == block.bytes.data_ptr() % HUGE_BYTES
    assert block.bytes.numel() == 3 * MIB + 17
    assert not block.bytes.any()
    block.close()


@pytest.mark.skipif(not _huge_pages_on_request(), reason="this system gives no huge pages on request")
def test_a_block_is_made_of_huge_pages() -> None:
    block = HostBlock(64 * MIB)
    block.populate()
    assert _huge_bytes(block.address, block.size_bytes) >= 32 * MIB  # the rest may be fragmented away
    block.close()


def test_pinning_registers_the_exact_size_and_close_unregisters() -> None:
    registrar = Registrar(MIB)
    block = HostBlock(5000, registrar)
    assert block.pin() and block.pin() and block.is_pinned
    assert registrar.registered == {block.address: 5000}
    block.close()
    block.close()
    assert registrar.registered == {}


def test_a_refusal_leaves_a_pageable_block_that_works() -> None:
    registrar = Registrar(100)
    block = HostBlock(5000, registrar)
    assert not block.pin()
    block.bytes.fill_(3)
    block.close()
    assert (registrar.registered, registrar.refusals) == ({}, 1)


def test_after_one_refusal_nobody_asks_again_and_it_is_said_once() -> None:
    said: list[str] = []
    inner = Registrar(3 * MIB)
    registrar = LimitedRegistrar(inner, said.append)
    blocks = [HostBlock(2 * MIB, registrar) for _ in range(3)]
    assert [block.pin() for block in blocks] == [True, False, False]
    assert inner.refusals == 1
    assert [message.split(";")[0] for message in said] == ["page-locking was refused after 0.00 GiB"]
    for block in blocks:
        block.close()
    assert inner.registered == {}


def test_a_known_limit_is_kept() -> None:
    said: list[str] = []
    inner = Registrar(100 * MIB)
    registrar = LimitedRegistrar(inner, said.append, limit_bytes=3 * MIB)
    blocks = [HostBlock(2 * MIB, registrar) for _ in range(2)]
    assert [block.pin() for block in blocks] == [True, False]
    assert (inner.refusals, len(said)) == (0, 1)


def test_a_view_outlives_its_block_without_harm() -> None:
    block = HostBlock(MIB)
    block.bytes.fill_(7)
    view = block.bytes[:100].view(torch.int16)
    block.close()
    gc.collect()
    assert view.eq(0x0707).all()
    with pytest.raises(ValueError, match="closed"):
        _ = block.bytes
    with pytest.raises(ValueError, match="closed"):
        block.window(0, 1)


def test_memory_comes_back() -> None:
    before = _resident_bytes()
    for _ in range(20):
        block = HostBlock(32 * MIB)
        block.populate()
        block.close()
    assert _resident_bytes() - before < 64 * MIB


def test_windows_write_into_the_block() -> None:
    block = HostBlock(8192)
    with block.window(4096, 4) as window:
        window[:] = b"abcd"
    assert bytes(block.bytes[4096:4100].numpy()) == b"abcd"
    block.close()


def test_pinning_waits_for_the_last_read() -> None:
    registrar = Registrar(MIB)
    block = HostBlock(4096, registrar)
    pin = PinWhenFull(block, reads=3)
    pin()
    pin()
    assert not block.is_pinned
    pin()
    assert block.is_pinned
    block.close()


def test_the_probe_keeps_four_fifths_of_what_was_accepted_and_gives_all_back() -> None:
    registrar = Registrar(9 * MIB)
    assert probe_pin_limit(registrar, 20 * MIB, step_bytes=2 * MIB) == 8 * MIB * 4 // 5
    assert registrar.registered == {}
    assert probe_pin_limit(Registrar(64 * MIB), 7 * MIB, step_bytes=2 * MIB) == 7 * MIB


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
