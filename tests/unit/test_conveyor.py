"""The conveyor brings every byte in time, whatever order the device takes; without any one fence it does not."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from conveyor_world import ORDERS, Drive, World, lay, make_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.device import Fence, InlineDevice
from yellowsound.memory.fake_device import FakeDevice
from yellowsound.memory.identity import FileIdentity
from yellowsound.memory.reader import Reader

LAYOUTS = ("VVVVVV", "RRRRRR", "DDDDDD", "VRDVRD", "DRRRDV", "RVRVRV", "DDVRRR")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), 6, seed=1)


@pytest.mark.parametrize("kinds", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_every_byte_is_right_for_every_layout(world: World, kinds: str, order: str) -> None:
    for seed in range(8):
        drive = Drive(world, lay(kinds), order=order, seed=seed)
        for _ in range(3):
            drive.lap()
        assert drive.end() == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_plan_is_right(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    units = data.draw(st.integers(1, 9), "units")
    world = make_world(tmp_path_factory.mktemp("w"), units, data.draw(st.integers(0, 10_000), "world"))
    drive = Drive(
        world,
        lay(data.draw(st.text("VRD", min_size=units, max_size=units), "homes")),
        slots=data.draw(st.integers(1, 4), "slots"),
        ring=data.draw(st.integers(1, 6), "ring"),
        chunk=4096 * data.draw(st.integers(1, 4), "chunk"),
        order=data.draw(st.sampled_from(ORDERS), "order"),
        seed=data.draw(st.integers(0, 10_000), "seed"),
        pins=data.draw(st.booleans(), "pins"),
    )
    for _ in range(data.draw(st.integers(1, 3), "laps")):
        if data.draw(st.booleans(), "abort"):
            drive.conveyor.begin_lap(drive.names, drive.names)
            for name in drive.names[: data.draw(st.integers(0, units - 1), "blocks")]:
                drive.block(name)
            drive.block(drive.conveyor._to_run[0].name, release=data.draw(st.booleans(), "held"))
            drive.conveyor.abort()
        drive.lap()
        ram = [name for name, kind in drive.conveyor.homes.items() if kind == "ram"]
        drive.conveyor.demote(ram[: data.draw(st.integers(0, 2), "demoted")])
    assert drive.end() == []


def _drives_with(world: World, omit: frozenset[Fence], unrecorded: frozenset[Fence]) -> list[str]:
    """Faults over all orders and some seeds."""
    faults: list[str] = []
    for order in ORDERS:
        for seed in range(4):
            for pins in (True, False):
                for slots in (1, 2):
                    drive = Drive(
                        world, lay("RDVRDR"), order=order, seed=seed, omit=omit, unrecorded=unrecorded, pins=pins,
                        slots=slots,
                    )  # fmt: skip
                    try:
                        faults += _a_hard_day(drive)
                    except ValueError as error:  # a buffer used after it was closed
                        faults.append(str(error))
    return faults


def _a_hard_day(drive: Drive) -> list[str]:
    """Laps, an abort with a unit held, a demotion, and a close while work is queued."""
    drive.lap()
    drive.conveyor.begin_lap(drive.names, drive.names)
    drive.block("u0")
    drive.block("u1", release=False)
    drive.conveyor.abort()
    drive.lap()
    drive.conveyor.demote(["u5"])
    drive.lap()
    return drive.end()


def test_the_mutation_check_itself_passes_unmutated(world: World) -> None:
    assert _drives_with(world, frozenset(), frozenset()) == []


FENCES = [fence for fence in Fence if fence not in (Fence.ROWS_FREE, Fence.ROWS_READY)]  # those: test_rows.py


@pytest.mark.parametrize("fence", FENCES)
def test_without_any_one_wait_bytes_go_wrong(world: World, fence: Fence) -> None:
    assert _drives_with(world, frozenset({fence}), frozenset()), f"nothing sees a missing wait: {fence.value}"


@pytest.mark.parametrize("fence", [fence for fence in FENCES if fence is not Fence.READ])
def test_without_any_one_record_bytes_go_wrong(world: World, fence: Fence) -> None:
    assert _drives_with(world, frozenset(), frozenset({fence})), f"nothing sees a missing record: {fence.value}"


def test_reads_and_copies_per_lap_are_what_the_homes_say(world: World) -> None:
    drive = Drive(world, lay("VRDVRD"), order="early")
    drive.lap(following=())
    counts = drive.conveyor.counts
    assert counts.read_bytes == sum(cut.extent.needed_bytes for p in world.parcels.values() for cut in p.cuts(4096))
    before_read, before_copied = counts.read_bytes, counts.copied_bytes
    drive.lap(following=())
    disk = [world.parcels[name] for name in ("u2", "u5")]
    ram = [world.parcels[name] for name in ("u1", "u4")]
    assert counts.read_bytes - before_read == sum(extent.needed_bytes for p in disk for extent in p.extents)
    assert counts.copied_bytes - before_copied == sum(move.size_bytes for p in disk + ram for move in p.moves)
    assert drive.end() == []


def test_nothing_is_allocated_after_the_first_lap(world: World) -> None:
    drive = Drive(world, lay("VRDVRD"), order="random")
    drive.lap()
    warm = list(drive.device.allocated)
    for _ in range(4):
        drive.lap()
    assert drive.device.allocated == warm
    assert drive.end() == []


def test_what_was_brought_ahead_for_another_order_is_dropped(world: World) -> None:
    for seed in range(10):
        drive = Drive(world, lay("VRDVRD"), order="random", seed=seed)
        drive.lap(following=["u5", "u4", "u3"])
        drive.lap(["u2", "u3", "u1", "u2"])
        drive.lap(["u0"])
        assert drive.end() == []


def test_homes_that_were_read_ahead_stay_when_another_lap_begins(world: World) -> None:
    for seed in range(6):
        drive = Drive(world, lay("RRRDVR"), order="random", seed=seed)
        drive.conveyor.begin_lap(["u0", "u1", "u2"])
        assert drive.conveyor.unfilled(drive.names) == ["u5"]  # the others are on their way
        drive.reader.serve_all()
        read = drive.conveyor.counts.read_bytes
        drive.lap(following=())
        rest = [world.parcels[name] for name in ("u3", "u4", "u5")]
        assert drive.conveyor.counts.read_bytes - read == sum(e.needed_bytes for p in rest for e in p.extents)
        assert drive.end() == []


def test_a_lap_that_was_begun_ahead_is_not_begun_again(world: World) -> None:
    drive = Drive(world, lay("DDDDDD"), order="random")
    drive.conveyor.begin_lap(["u0", "u1"], ["u2", "u3"])
    read = drive.conveyor.counts.read_bytes
    drive.conveyor.begin_lap(["u0", "u1"], ["u2", "u3"])
    assert drive.conveyor.counts.read_bytes == read > 0
    drive.block("u0")
    drive.block("u1")
    drive.lap(["u2", "u3"], [])
    assert drive.conveyor.counts.read_bytes == sum(
        e.needed_bytes for n in drive.names[:4] for e in world.parcels[n].extents
    )
    assert drive.end() == []


def test_a_home_given_back_is_filled_again(world: World) -> None:
    for seed in range(10):
        drive = Drive(world, lay("VRDVRD"), order="random", seed=seed)
        drive.lap()
        drive.conveyor.evict(["u0", "u1"])
        drive.lap()
        assert drive.conveyor.homes["u1"] == "ram"
        assert drive.end() == []


def test_demoting_reports_bytes_and_changes_the_home(world: World) -> None:
    drive = Drive(world, lay("RRRRRR"), order="random")
    drive.lap()
    freed = drive.conveyor.demote(["u5", "u4"])
    assert freed == world.parcels["u5"].host_bytes + world.parcels["u4"].host_bytes
    assert [drive.conveyor.homes[f"u{index}"] for index in range(6)] == ["ram"] * 4 + ["disk"] * 2
    drive.lap()
    assert drive.end() == []


def test_a_home_without_room_becomes_a_disk_home(world: World) -> None:
    rooms = iter([True, False, True, True, True, False])
    drive = Drive(world, lay("RRRRRR"), order="random", has_room=lambda size: next(rooms))
    drive.lap()
    assert drive.conveyor.take_turned() == ["u1", "u5"]
    assert drive.conveyor.take_turned() == []
    drive.lap(following=())
    assert [drive.conveyor.homes[name] for name in drive.names] == ["ram", "disk", "ram", "ram", "ram", "disk"]
    assert drive.end() == []


def test_a_unit_that_is_not_released_stops_the_next_lap(world: World) -> None:
    drive = Drive(world, lay("RRRRRR"))
    drive.conveyor.begin_lap(drive.names)
    drive.block("u0", release=False)
    with pytest.raises(RuntimeError, match="u0 was not released"):
        drive.conveyor.begin_lap(drive.names)
    drive.conveyor.release()
    with pytest.raises(RuntimeError, match="no unit is acquired"):
        drive.conveyor.release()
    drive.end()


def with_threads(world: World, kinds: str, *, courier: bool) -> tuple[Reader, Conveyor]:
    """A conveyor on the CPU with a real reader."""
    reader = Reader([FileIdentity.of(world.file)], threads=3)
    conveyor = Conveyor(
        InlineDevice(), reader, world.parcels, lay(kinds), slots=2, ring_bytes=3 * 4096, chunk_bytes=4096,
        courier=courier,
    )  # fmt: skip
    reader.on_done = conveyor.notify
    return reader, conveyor


def lap(world: World, conveyor: Conveyor) -> None:
    """One lap over all units, each compared with the file."""
    names = list(world.parcels)
    conveyor.begin_lap(names, names)
    for _ in names:
        assert world.faults(conveyor.acquire()) == []
        conveyor.release()


@pytest.mark.parametrize("courier", [False, True])
@pytest.mark.parametrize("kinds", LAYOUTS)
def test_real_threads_bring_the_same_bytes(world: World, kinds: str, courier: bool) -> None:
    threads = threading.active_count()
    files = _open_files()
    reader, conveyor = with_threads(world, kinds, courier=courier)
    for _ in range(3):
        lap(world, conveyor)
    conveyor.close()
    conveyor.close()  # twice is once
    reader.close()
    assert threading.active_count() == threads
    assert _open_files() == files


@pytest.mark.parametrize("kinds", LAYOUTS)
def test_slots_that_were_given_back_are_held_by_nobody(world: World, kinds: str) -> None:
    reader, conveyor = with_threads(world, kinds, courier=False)
    for _ in range(2):
        lap(world, conveyor)
        slots = [weakref.ref(slot.buffer) for slot in conveyor._slots]
        assert len(slots) == 2
        conveyor.drop_slots()
        gc.collect()
        assert [slot() for slot in slots] == [None, None]
        conveyor.take_slots()
    conveyor.close()
    reader.close()


def test_a_cancel_is_seen_while_the_disk_is_waited_for(world: World) -> None:
    gate = threading.Event()

    def stuck(*_: object) -> int:
        gate.wait(20)
        raise OSError(5, "Input/output error")

    class Stop(Exception):
        pass

    def check() -> None:
        raise Stop

    reader = Reader(threads=2, preadv=stuck)
    conveyor = Conveyor(
        InlineDevice(), reader, world.parcels, lay("DDDDDD"), slots=2, ring_bytes=8192, chunk_bytes=4096
    )
    conveyor.begin_lap(list(world.parcels))
    with pytest.raises(Stop):
        conveyor.acquire(check)
    gate.set()
    conveyor.abort()
    conveyor.close()
    reader.close()


@pytest.mark.parametrize(("read_seconds", "block_seconds"), [(0.01, 0.03), (0.03, 0.01)])
def test_reading_hides_behind_blocks_and_blocks_behind_reading(
    world: World, read_seconds: float, block_seconds: float
) -> None:
    """A warm lap over disk homes takes the longer of the two times, not their sum."""

    def slow(fd: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        time.sleep(read_seconds)
        return os.preadv(fd, buffers, offset)

    reader = Reader(threads=1, preadv=slow)
    sizes = {"slots": 2, "ring_bytes": 4 * 65536, "chunk_bytes": 65536}
    conveyor = Conveyor(InlineDevice(), reader, world.parcels, lay("DDDDDD"), courier=True, **sizes)
    reader.on_done = conveyor.notify
    names = list(world.parcels)
    reads = sum(len(parcel.cuts(65536)) for parcel in world.parcels.values())
    laps = []
    for _ in range(5):
        began = time.perf_counter()
        conveyor.begin_lap(names, names)
        for _name in names:
            conveyor.acquire()
            time.sleep(block_seconds)
            conveyor.release()
        laps.append(time.perf_counter() - began)
    conveyor.close()
    reader.close()
    hidden, shown = sorted((reads * read_seconds, len(names) * block_seconds))
    assert shown * 0.95 <= min(laps[1:]) < shown + hidden / 2


def test_the_fake_device_poisons_what_is_freed() -> None:
    device = FakeDevice("early")
    buffer = device.alloc(8)
    buffer.zero_()
    device.free(buffer)
    assert torch.equal(buffer, torch.full((8,), 0xCD, dtype=torch.uint8))


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
