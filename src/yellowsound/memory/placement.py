"""Placement: how many blocks each home holds, where they sit in the cycle, and the step time that follows.

Numbers in, numbers out. The derivation: a cyclic scan is served at the rate of its slowest resource exactly when the
slow blocks are spread evenly, so that compute between two of them hides the read of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from yellowsound.memory.units import Home

DERATING = 0.7  # of measured rates: sustained reads throttle, and other traffic shares link and disk
MEMCPY_BYTES_PER_SECOND = 12e9  # two threads from ordinary memory into the pinned ring, 6 GB/s each measured

Bound = Literal["compute", "disk", "link"]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of the blocks live in each home."""

    vram: int
    ram: int
    disk: int

    @property
    def total(self) -> int:
        return self.vram + self.ram + self.disk


def count(blocks: int, device_bytes: int, ram_bytes: int, vram_budget: int, ram_budget: int) -> Counts:
    """As many blocks in VRAM as fit, of the rest as many in RAM as fit, the others on disk.

    VRAM blocks do not make a pinned system faster, they take the place of host memory: what makes disk units vanish.
    """
    vram = min(blocks, max(vram_budget, 0) // device_bytes)
    ram = min(blocks - vram, max(ram_budget, 0) // ram_bytes)
    return Counts(vram, ram, blocks - vram - ram)


def spread(positions: int, chosen: int) -> list[int]:
    """``chosen`` of ``positions``, evenly: floor((i + 1/2) * positions / chosen)."""
    return [(2 * i + 1) * positions // (2 * chosen) for i in range(chosen)]


def arrange(counts: Counts) -> tuple[Home, ...]:
    """A home for each block: disk spread over the cycle, VRAM spread over what is left, RAM in the remaining places."""
    homes = [Home.RAM] * counts.total
    for position in spread(counts.total, counts.disk):
        homes[position] = Home.DISK
    left = [i for i, home in enumerate(homes) if home is Home.RAM]
    for position in spread(len(left), counts.vram):
        homes[left[position]] = Home.VRAM
    return tuple(homes)


@dataclass(frozen=True, slots=True)
class Pace:
    """The three times of a lap, in seconds; the largest is the lap's."""

    compute: float
    disk: float
    link: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.disk, self.link)

    @property
    def bound(self) -> Bound:
        """What the lap waits for."""
        if self.compute >= max(self.disk, self.link):
            return "compute"
        return "disk" if self.disk >= self.link else "link"


def pace(
    compute_seconds: float,
    disk_bytes: float,
    link_bytes: float,
    disk_rate: float,
    link_rate: float,
    *,
    pageable_bytes: float = 0,
    derating: float = DERATING,
) -> Pace:
    """Time of a lap: max(compute, bytes from disk / disk rate, bytes over the link / link rate), rates derated.

    pageable_bytes: those coming from ordinary memory; they pass the processor first.
    """
    link = max(link_bytes / link_rate, pageable_bytes / MEMCPY_BYTES_PER_SECOND) / derating
    return Pace(compute_seconds, disk_bytes / (disk_rate * derating), link)
