"""Conveyor: brings units to the device in the order they are needed, ahead of the blocks that need them.

It knows units, homes, slots and the two streams; it does not know what a unit computes. A lap is an order of units.
Work on the host is done by whoever calls (and, on a GPU, by one courier thread): submit reads in order while the ring
has chunks, queue copies in order while slots are free. Nothing here waits for the device except as a fence says.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from yellowsound.memory.arrival import Arrival, Merger
from yellowsound.memory.device import Device, Fence, Stream
from yellowsound.memory.extents import Parcel
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.reader import CHUNK_BYTES, Reading
from yellowsound.memory.ring import Ring
from yellowsound.memory.supply import Supply
from yellowsound.memory.visit import Berth, Counts, Fill, HomeKind, Loaded, Slot, Visit

_POLL_SECONDS = 0.1  # how soon a cancel is seen by a thread that waits for the disk


class Conveyor:
    """``begin_lap``, then for every unit of it ``acquire`` and ``release``. One thread drives it."""

    def __init__(
        self,
        device: Device,
        reader: Reading,
        parcels: Mapping[str, Parcel],
        homes: Mapping[str, HomeKind],
        *,
        slots: int,
        ring_bytes: int,
        chunk_bytes: int = CHUNK_BYTES,
        slot_bytes: int = 0,
        merger: Merger | None = None,
        has_room: Callable[[int], bool] = lambda size_bytes: True,
        courier: bool = False,
    ) -> None:
        self.counts = Counts()
        self._device, self._reader = device, reader
        self._arrival = Arrival(device, merger)
        self._berths = {name: Berth(parcel, parcel.cuts(chunk_bytes), homes[name]) for name, parcel in parcels.items()}
        self._slot_bytes = max([slot_bytes, *(parcel.slot_bytes for parcel in parcels.values())])
        self._slot_count, self._slots = slots, list[Slot]()
        for berth in self._berths.values():
            if berth.kind == "vram":
                berth.set_home(device.alloc(berth.parcel.compact_bytes))
        self._ring = Ring(device, chunk_bytes, max(ring_bytes // chunk_bytes, 1))
        self._supply = Supply(device, reader, self._ring, self.counts, has_room)
        self._to_read: deque[Visit] = deque()
        self._to_copy: deque[Visit] = deque()
        self._to_run: deque[Visit] = deque()
        self._held: Visit | None = None
        self._failure: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition(threading.RLock())
        self.take_slots()
        self._courier: threading.Thread | None = None
        if courier:
            self._courier = threading.Thread(target=self._carry, name="courier", daemon=True)
            self._courier.start()

    @property
    def has_slots(self) -> bool:
        """Whether units stream; else all of them live on the device once they were filled."""
        return self._slot_count > 0

    @property
    def homes(self) -> dict[str, HomeKind]:
        """Where each unit lives now."""
        return {name: berth.kind for name, berth in self._berths.items()}

    def take_turned(self) -> list[str]:
        """Units whose RAM home had no room when they passed, since this was last asked; they are on disk now."""
        with self._changed:
            turned, self._supply.turned = self._supply.turned, []
            return turned

    def unfilled(self, names: Sequence[str]) -> list[str]:
        """Those of ``names`` whose RAM home is still empty."""
        with self._changed:
            chosen = [(name, self._berths[name]) for name in names]
            return [name for name, berth in chosen if berth.kind == "ram" and berth.fill is Fill.EMPTY]

    def begin_lap(self, order: Sequence[str], following: Sequence[str] = ()) -> None:
        """Start a lap over ``order``; what runs ahead of its end takes ``following`` for the next lap.

        What an earlier lap brought ahead is used if it guessed this order, and dropped if not.
        """
        with self._changed:
            if self._held is not None:
                raise RuntimeError(f"unit {self._held.name} was not released")
            ahead = [visit.name for visit in self._to_run]
            if ahead != [*order, *following]:
                if ahead != list(order):
                    self._discard()
                    self._enqueue(order)
                self._enqueue(following)
            self._pump()

    def acquire(self, check: Callable[[], None] = lambda: None) -> Loaded:
        """The next unit of the lap, on the device for whatever is queued on the compute stream from now on.

        ``check`` is called while the host waits for a read; what it raises (a cancel) goes through. Raises ReadError.
        """
        with self._changed:
            visit = self._to_run[0]
            self._pump()
        while not visit.is_issued:
            self.counts.host_waits += 1
            self._wait_for(visit)
            check()
            with self._changed:
                self._pump()
        with self._changed:
            self._held = self._to_run.popleft()
            self._device.wait(Stream.COMPUTE, visit.ready, Fence.READY)
            self.counts.visits += 1
            return Loaded(visit.name, visit.tensors())

    def release(self) -> None:
        """Everything that reads the acquired unit has been queued."""
        with self._changed:
            visit, self._held = self._held, None
            if visit is None:
                raise RuntimeError("no unit is acquired")
            if visit.slot is not None:
                self._device.retire(visit.slot.buffer, Stream.COMPUTE)
                visit.slot.free = self._device.record(Stream.COMPUTE, Fence.SLOT_FREE)
                visit.slot.user = None
            self._pump()
            self._changed.notify_all()

    def abort(self) -> None:
        """Leave a lap in the middle: release what is held and forget the rest. Reads under way are waited for."""
        with self._changed:
            if self._held is not None:
                self.release()
            self._discard()

    def fill(self, names: Sequence[str]) -> None:
        """Bring units into their homes now, with no block to run. Raises ReadError."""
        self.begin_lap(names)
        for _ in names:
            self.acquire()
            self.release()

    def take_slots(self) -> None:
        """Have the slots again that ``drop_slots`` gave back."""
        with self._changed:
            if not self._slots:
                self._slots = [Slot(index, self._device.alloc(self._slot_bytes)) for index in range(self._slot_count)]

    def drop_slots(self) -> None:
        """Give the slots back: for a while, or for good where all units live on the device. Homes stay."""
        with self._changed:
            self._discard()
            self._wait_idle()
            for berth in self._berths.values():
                berth.slot_views.clear()
            for slot in self._slots:
                self._device.free(slot.buffer)
            self._slots.clear()

    def adopt(self, blocks: Mapping[str, HostBlock]) -> None:
        """Take over RAM homes that are full already, from ``hand_over`` of a conveyor of the same parcels."""
        with self._changed:
            for name, block in blocks.items():
                self._berths[name].block, self._berths[name].fill = block, Fill.FULL

    def hand_over(self) -> dict[str, HostBlock]:
        """Give the full RAM homes to the caller, who frees them."""
        with self._changed:
            self._discard()
            self._wait_idle()
            blocks: dict[str, HostBlock] = {}
            for name, berth in self._berths.items():
                if berth.block is not None and berth.fill is Fill.FULL:
                    blocks[name], berth.block = berth.block, None
                    berth.forget()
            return blocks

    def demote(self, names: Sequence[str]) -> int:
        """Turn RAM homes into disk homes and give their memory back; returns the bytes given back.

        Between units only. What was on its way is fetched again, so weights stay right.
        """
        with self._changed:
            order = [visit.name for visit in self._to_run]
            ranks = [visit.rank for visit in self._to_run]
            self._discard()
            freed = sum(self._give_back(self._berths[name], "disk") for name in names)
            self._enqueue(order, ranks)
            self._pump()
            return freed

    def evict(self, names: Sequence[str]) -> None:
        """Give back device or host homes for now; their units are read again when they are next visited."""
        with self._changed:
            self._discard()
            self._wait_idle()
            for name in names:
                berth = self._berths[name]
                if berth.buffer is not None:
                    self._device.free(berth.buffer)
                    berth.buffer, berth.home_views = None, {}
                    berth.forget()
                self._give_back(berth, berth.kind)

    def close(self) -> None:
        """Stop the courier, wait for the device, give all memory back. The reader is the caller's to close."""
        if self._is_closed:
            return
        with self._changed:
            self.abort()
            self._is_closed = True
            self._changed.notify_all()
        if self._courier is not None:
            self._courier.join()
        self._wait_idle()
        for berth in self._berths.values():
            berth.slot_views.clear()
            berth.home_views = {}
            for memory in (berth.buffer, berth.block):
                if memory is not None:
                    self._device.free(memory)
            berth.buffer = berth.block = None
        for slot in self._slots:
            self._device.free(slot.buffer)
        self._slots.clear()
        self._ring.close()

    # ------------------------------------------------------------------ inside; the lock is held

    def _enqueue(self, order: Sequence[str], ranks: Sequence[int] | None = None) -> None:
        streamed = 0
        for index, name in enumerate(order):
            berth = self._berths[name]
            visit = Visit(name, berth, ranks[index] if ranks is not None else streamed)
            streamed += berth.kind != "vram" or berth.fill is Fill.EMPTY
            for queue in (self._to_read, self._to_copy, self._to_run):
                queue.append(visit)

    def _discard(self) -> None:
        """Forget all visits that have not run: no read of theirs writes any more, no slot or chunk is theirs."""
        self._reader.cancel([ticket for visit in self._to_copy for ticket in visit.tickets()])
        for visit in self._to_copy:
            for part in visit.parts:
                if part.chunk is not None and not part.is_copied:
                    part.chunk.drop()
            if visit.fills:
                visit.keep_or_forget()
        for visit in self._to_run:
            if visit.slot is not None and visit.slot.user is visit:
                visit.slot.user = None
        for queue in (self._to_read, self._to_copy, self._to_run):
            queue.clear()

    def _pump(self) -> None:
        """Submit and queue whatever can be, in order."""
        while self._submit() or self._issue():
            pass

    def _submit(self) -> bool:
        """Promise the next visit's reads. True once all of them are promised."""
        if not self._to_read or not self._supply.submit(self._to_read[0]):
            return False
        self._to_read.popleft().is_submitted = True
        return True

    def _issue(self) -> bool:
        """Queue the next visit's copies. True once all of them are queued and its arrival is marked."""
        if not self._to_copy:
            return False
        visit = self._to_copy[0]
        if visit.parts and not self._take_slot(visit):
            return False
        if visit.slot is not None and not self._supply.copy(visit, visit.slot.buffer):
            return False
        if not visit.is_submitted:
            return False
        self._arrival.complete(visit)
        self._to_copy.popleft().is_issued = True
        return True

    def _take_slot(self, visit: Visit) -> bool:
        """Give the visit its slot, and let the copies wait for the block that used it before."""
        if visit.slot is None:
            if not self._slots:  # a plan that streams nothing has a slot only while it fills its homes
                self._slots.append(Slot(0, self._device.alloc(self._slot_bytes)))
            slot = self._slots[visit.rank % len(self._slots)]
            if slot.user is not None:
                return False
            self._device.wait(Stream.COPY, slot.free, Fence.SLOT_FREE)
            slot.user, visit.slot = visit, slot
        return True

    def _wait_idle(self) -> None:
        for stream in Stream:
            self._device.synchronize(self._device.record(stream, Fence.IDLE), Fence.IDLE)

    def _give_back(self, berth: Berth, kind: HomeKind) -> int:
        if berth.block is None:
            return 0
        self._device.synchronize(berth.last_copy, Fence.HOME_COPIED)
        freed, berth.kind = berth.block.size_bytes, kind
        self._device.free(berth.block)
        berth.block = None
        berth.forget()
        return freed

    def _wait_for(self, visit: Visit) -> None:
        """Hold the host until the read that the visit waits for is done, for a moment at most. Raises ReadError."""
        if self._failure is not None:
            raise self._failure
        ticket = visit.waiting()
        if ticket is not None:
            ticket.wait(_POLL_SECONDS)
            return
        with self._changed:
            if not visit.is_issued:
                self._changed.wait(_POLL_SECONDS)

    def _carry(self) -> None:
        """The courier: keeps the disk and the link busy while the driving thread queues kernels."""
        with self._changed:
            while not self._is_closed:
                try:
                    self._pump()
                except BaseException as error:
                    self._failure = error
                    return
                self._changed.wait()

    def notify(self) -> None:
        """A read is done: wake the courier. For the reader's threads."""
        with self._changed:
            self._changed.notify_all()
