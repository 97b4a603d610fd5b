"""Arrival: what happens to a unit once its bytes are in a slot: casts, merges, and what its home keeps.

All of it is queued on the copy stream behind the copies; the mark that blocks wait for comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from yellowsound.memory.device import Device, Fence, Stream
from yellowsound.memory.visit import Fill, Slot, Visit


class Merger(Protocol):
    """Changes weights as they enter the device: ``names`` are the tensors of a unit that ``merge`` changes in place."""

    def names(self, unit: str) -> frozenset[str]: ...

    def merge(self, unit: str, tensors: Mapping[str, torch.Tensor]) -> None: ...


class Arrival:
    """Completes visits whose copies are queued."""

    def __init__(self, device: Device, merger: Merger | None) -> None:
        self._device, self._merger = device, merger

    def complete(self, visit: Visit) -> None:
        """Queue casts, merges and keeping, and set the visit's ``ready``."""
        berth, slot = visit.berth, visit.slot
        if slot is None:
            visit.ready = berth.ready
            return
        self._device.run(lambda: berth.cast_in(slot), Stream.COPY)
        self._merge(visit, slot)
        if berth.kind == "vram":
            if berth.buffer is None:  # given back earlier
                berth.set_home(self._device.alloc(berth.parcel.compact_bytes))
            self._device.run(lambda: berth.keep_from(slot), Stream.COPY)
        visit.ready = berth.ready = self._device.record(Stream.COPY, Fence.READY)
        if berth.kind == "ram":
            berth.last_copy = self._device.record(Stream.COPY, Fence.HOME_COPIED)
        if visit.fills:
            berth.fill = Fill.FULL

    def _merge(self, visit: Visit, slot: Slot) -> None:
        """Merge on the device, in the dtype that runs; a home that holds that dtype takes the result back."""
        berth = visit.berth
        names = self._merger.names(visit.name) if self._merger is not None else frozenset()
        if self._merger is None or not names or berth.is_merged:
            return
        merge, views = self._merger.merge, berth.views_in(slot)
        self._device.run(lambda: merge(visit.name, views), Stream.COPY)
        places = [place for place in berth.parcel.places if place.name in names]
        if berth.kind == "ram" and berth.block is not None and self._device.can_copy_from(berth.block):
            berth.is_merged = not any(place.is_cast for place in places)
            for place in places if berth.is_merged else ():
                start = berth.parcel.host_offset(place)
                home = berth.block.bytes[start : start + place.stored_bytes]
                merged = slot.buffer[place.slot_offset : place.slot_offset + place.stored_bytes]
                self._device.copy(home, merged, Stream.COPY)
