"""Watching host memory while a plan runs, so that homes are given back before the system swaps or kills."""

from __future__ import annotations

from collections.abc import Callable

from yellowsound.memory.budget import HostMemory, host_memory, reserve_bytes


class HostWatch:
    """Keeps a floor of available host memory: half of the reserve that the plan left to others.

    Below the floor, homes of about ``home_bytes`` are given back until the whole reserve is there again.
    """

    def __init__(self, home_bytes: int, memory: Callable[[], HostMemory] = host_memory) -> None:
        now = memory()
        self.reserve_bytes = reserve_bytes(now.total_bytes, now.available_bytes)
        self._home_bytes, self._memory = max(home_bytes, 1), memory

    def __call__(self) -> int:
        """How many homes to give back now."""
        available = self._memory().available_bytes
        if available >= self.reserve_bytes // 2:
            return 0
        return -(-(self.reserve_bytes - available) // self._home_bytes)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a home of this size may still be filled."""
        return self._memory().available_bytes - size_bytes >= self.reserve_bytes // 2
