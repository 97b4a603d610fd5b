"""A discrete-event model of streamed laps, written to check the planner's formula from another side.

Four servers in program order: the disk fills chunks of a ring, the copy engine moves chunks into device slots, the
device computes a block when its bytes are there, and frees its slot afterwards. No formula is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yellowsound.memory.units import Home


@dataclass(frozen=True)
class Hardware:
    block_bytes: float
    block_seconds: float
    disk_rate: float
    link_rate: float
    slots: int = 3
    chunk_bytes: float = 64 << 20
    ring_chunks: int = 16


def lap_seconds(homes: Sequence[Home], hardware: Hardware, laps: int = 8, skip: int = 3) -> float:
    """Mean seconds of a lap once the first ``skip`` laps have filled every buffer.

    Every event's time follows from times of events before it in program order, so one pass over the blocks in that
    order is enough: no event queue is needed.
    """
    chunks = max(1, round(hardware.block_bytes / hardware.chunk_bytes))
    size = hardware.block_bytes / chunks
    disk_free = copy_free = device_free = 0.0
    ring: list[float] = []  # when the k-th staged chunk left the ring
    slots: list[float] = []  # when the k-th streamed block was done with its slot
    ends = []
    for _ in range(laps):
        for home in homes:
            arrived = 0.0
            if home is not Home.VRAM:
                slot_free = slots[-hardware.slots] if len(slots) >= hardware.slots else 0.0
                for chunk in range(chunks):
                    ready = 0.0
                    if home is Home.DISK:
                        room = ring[-hardware.ring_chunks] if len(ring) >= hardware.ring_chunks else 0.0
                        disk_free = max(disk_free, room) + size / hardware.disk_rate
                        ready = disk_free
                    copy_free = max(copy_free, ready, slot_free if chunk == 0 else 0.0) + size / hardware.link_rate
                    if home is Home.DISK:
                        ring.append(copy_free)
                arrived = copy_free
            device_free = max(device_free, arrived) + hardware.block_seconds
            if home is not Home.VRAM:
                slots.append(device_free)
        ends.append(device_free)
    return (ends[-1] - ends[skip]) / (laps - 1 - skip)
