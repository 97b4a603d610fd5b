"""Supply: where the bytes of a visit come from, and the copies that take them into a slot.

One rule by the state of the home: a full device home moves nothing; a full RAM home is copied from; an empty RAM home
is read into first, straight from the file; everything else passes the ring chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from yellowsound.memory.device import Device, Fence, Stream
from yellowsound.memory.extents import Cut
from yellowsound.memory.pinned import HostBlock, PinWhenFull
from yellowsound.memory.reader import HostCopy, Reading, ReadRequest, Ticket
from yellowsound.memory.ring import Chunk, Ring
from yellowsound.memory.visit import Counts, Fill, Part, Visit

FILLS_AT_ONCE = 4  # RAM homes being read into; more would take memory long before it is needed


class Supply:
    """Promises reads for visits and queues their copies."""

    def __init__(
        self, device: Device, reader: Reading, ring: Ring, counts: Counts, has_room: Callable[[int], bool]
    ) -> None:
        self.turned: list[str] = []  # units whose RAM home had no room any more
        self._device, self._reader, self._ring, self._counts = device, reader, ring, counts
        self._has_room = has_room
        self._fills: list[list[Ticket]] = []  # reads alone: a visit would keep its slot's memory

    def submit(self, visit: Visit) -> bool:
        """Promise the reads of ``visit``; False while the ring is full or its home is still filling."""
        berth = visit.berth
        if berth.kind == "vram" and berth.fill is not Fill.EMPTY and not visit.fills:
            return True
        if berth.kind == "ram" and not visit.fills:
            if berth.fill is Fill.FILLING:
                return False
            if berth.fill is Fill.EMPTY:
                self._fills = [fill for fill in self._fills if not all(ticket.is_done for ticket in fill)]
                if len(self._fills) >= FILLS_AT_ONCE:
                    return False
                if self._has_room(berth.parcel.host_bytes):
                    return self._fill_home(visit)
                berth.kind = "disk"
                self.turned.append(visit.name)
            if berth.block is not None and self._device.can_copy_from(berth.block):
                visit.parts.append(Part([], berth.block, 0, berth.parcel.moves))
                return True
        if berth.kind == "vram":
            berth.fill, visit.fills = Fill.FILLING, True
        return self._through_ring(visit)

    def copy(self, visit: Visit, target: torch.Tensor) -> bool:
        """Queue the copies of every part that has arrived, in order; False if one has not."""
        for part in visit.parts:
            if part.is_copied:
                continue
            if part.waiting() is not None:
                return False
            self._copy_part(part, target)
        return True

    def _copy_part(self, part: Part, target: torch.Tensor) -> None:
        for move in part.moves:
            start = part.start + move.host_offset
            source = part.block.bytes[start : start + move.size_bytes]
            self._device.copy(target[move.slot_offset : move.slot_offset + move.size_bytes], source, Stream.COPY)
            self._counts.copied_bytes += move.size_bytes
        part.is_copied = True
        if part.chunk is not None:
            part.chunk.give_back(self._device.record(Stream.COPY, Fence.CHUNK_COPIED))

    def _fill_home(self, visit: Visit) -> bool:
        """Read a unit straight into its RAM home; its copies follow once the home is whole and page-locked."""
        berth = visit.berth
        if berth.block is None:
            berth.block = self._device.alloc_host(berth.parcel.host_bytes)
        pin = PinWhenFull(berth.block, len(berth.cuts))
        tickets = []
        for cut in berth.cuts:
            tickets.append(self._reader.submit(self._read(cut, berth.block, cut.extent.host_offset, after=pin)))
        berth.fill, visit.fills = Fill.FILLING, True
        visit.parts.append(Part(tickets, berth.block, 0, berth.parcel.moves))
        self._fills.append(visit.tickets())
        return True

    def _through_ring(self, visit: Visit) -> bool:
        """A chunk for every cut, as long as the ring has one whose last bytes are queued."""
        cuts = visit.berth.cuts
        while visit.cuts_submitted < len(cuts):
            chunk = self._ring.claim()
            if chunk is None:
                return False
            cut = cuts[visit.cuts_submitted]
            ticket = self._reader.submit(self._into_chunk(cut, visit, chunk))
            visit.parts.append(Part([ticket], self._ring.block, chunk.start, cut.moves, chunk))
            visit.cuts_submitted += 1
        return True

    def _into_chunk(self, cut: Cut, visit: Visit, chunk: Chunk) -> ReadRequest | HostCopy:
        """From the file, or from a home that the device cannot copy from by itself."""
        before = self._ring.wait_until_copied(chunk)
        home = visit.berth.block
        if home is None:
            return self._read(cut, self._ring.block, chunk.start, before=before)
        extent = cut.extent
        return HostCopy(home, extent.host_offset, extent.size_bytes, self._ring.block, chunk.start, before)

    def _read(
        self,
        cut: Cut,
        block: HostBlock,
        start: int,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> ReadRequest:
        extent = cut.extent
        self._counts.read_bytes += extent.needed_bytes
        return ReadRequest(
            extent.file, extent.file_offset, extent.size_bytes, extent.needed_bytes, block, start, before, after
        )
