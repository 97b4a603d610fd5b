"""Host memory is watched: homes go back when less than half of the reserve is left, enough of them at once."""

from __future__ import annotations

from yellowsound.memory.budget import GIB, HostMemory
from yellowsound.memory.watch import HostWatch


class Machine:
    def __init__(self) -> None:
        self.available_bytes = 40 * GIB

    def __call__(self) -> HostMemory:
        return HostMemory(64 * GIB, self.available_bytes, "test")


def test_homes_go_back_until_the_reserve_is_whole_again() -> None:
    machine = Machine()
    watch = HostWatch(GIB, machine)
    assert watch.reserve_bytes == int(64 * GIB * 0.08)
    assert watch() == 0
    machine.available_bytes = watch.reserve_bytes // 2
    assert watch() == 0
    machine.available_bytes = watch.reserve_bytes // 2 - 1
    assert watch() == 3  # 2.56 GiB are missing
    machine.available_bytes = 0
    assert watch() == 6


def test_a_home_is_filled_only_above_the_floor() -> None:
    machine = Machine()
    watch = HostWatch(GIB, machine)
    floor = watch.reserve_bytes // 2
    machine.available_bytes = floor + GIB
    assert watch.has_room(GIB)
    assert not watch.has_room(GIB + 1)
