"""Berth, Slot and Visit: where a unit stands while a plan runs, and one passing of it through the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import torch

from yellowsound.memory.extents import Cut, Move, Parcel
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.reader import Ticket
from yellowsound.memory.ring import Chunk

HomeKind = Literal["vram", "ram", "disk"]

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES_OF_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class Fill(Enum):
    """How far a home is with its unit's bytes."""

    EMPTY = "empty"
    FILLING = "filling"
    FULL = "full"


@dataclass(slots=True, eq=False)
class Berth:
    """A unit's home as it is now: device buffer or host block, and what it holds.

    ``ready`` marks the arrival in a device home, ``last_copy`` the end of the last copy out of a host home.
    """

    parcel: Parcel
    cuts: tuple[Cut, ...]
    kind: HomeKind
    fill: Fill = Fill.EMPTY
    buffer: torch.Tensor | None = None
    block: HostBlock | None = None
    ready: Any = None
    last_copy: Any = None
    is_merged: bool = False
    home_views: dict[str, torch.Tensor] = field(default_factory=dict)
    slot_views: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def views_in(self, slot: Slot) -> dict[str, torch.Tensor]:
        """The unit's tensors in a slot, in the dtype to run in. Kept, so that a visit allocates nothing."""
        if slot.index not in self.slot_views:
            offsets = {place.name: place.view_offset for place in self.parcel.places}
            self.slot_views[slot.index] = views_of(self.parcel, slot.buffer, offsets)
        return self.slot_views[slot.index]

    def set_home(self, buffer: torch.Tensor) -> None:
        """Take ``buffer`` (of the parcel's compact size) as the home on the device."""
        self.buffer = buffer
        self.home_views = views_of(self.parcel, buffer, self.parcel.compact())

    def cast_in(self, slot: Slot) -> None:
        """Turn stored dtypes into wanted ones, inside the slot."""
        views = self.views_in(slot)
        for place in self.parcel.places:
            if place.is_cast:
                stored = slot.buffer[place.slot_offset : place.slot_offset + place.stored_bytes]
                views[place.name].copy_(stored.view(TORCH_DTYPES[place.stored]).view(place.shape))

    def keep_from(self, slot: Slot) -> None:
        """Copy what runs from the slot into the home on the device."""
        views = self.views_in(slot)
        for name, home in self.home_views.items():
            home.copy_(views[name])

    def forget(self) -> None:
        """Hold nothing any more; buffers were given back or will be filled again."""
        self.fill, self.is_merged, self.ready, self.last_copy = Fill.EMPTY, False, None, None


@dataclass(slots=True, eq=False)
class Part:
    """Bytes that arrive together: the reads they wait for, and the moves that take them on.

    Move offsets count from ``start`` in ``block``.
    """

    tickets: list[Ticket]
    block: HostBlock
    start: int
    moves: tuple[Move, ...]
    chunk: Chunk | None = None
    is_copied: bool = False

    def waiting(self) -> Ticket | None:
        """The first read that is not done, or that failed."""
        return next((ticket for ticket in self.tickets if not ticket.is_done or ticket.error is not None), None)


@dataclass(slots=True, eq=False)
class Slot:
    """A fixed piece of device memory that one streamed unit has at a time."""

    index: int
    buffer: torch.Tensor
    user: Visit | None = None
    free: Any = None


@dataclass(slots=True, eq=False)
class Visit:
    """One unit on its way: reads promised, parts to copy, the slot it takes, the mark that it has arrived.

    ``rank`` is its place among the units of its lap that may need a slot.
    """

    name: str
    berth: Berth
    rank: int
    parts: list[Part] = field(default_factory=list)
    cuts_submitted: int = 0
    is_submitted: bool = False
    is_issued: bool = False
    fills: bool = False
    slot: Slot | None = None
    ready: Any = None

    def tickets(self) -> list[Ticket]:
        return [ticket for part in self.parts for ticket in part.tickets]

    def waiting(self) -> Ticket | None:
        """The read that this visit waits for next, if it waits for one."""
        return next((found for part in self.parts if (found := part.waiting())), None)

    def keep_or_forget(self) -> None:
        """The visit is called off: a RAM home that was read whole stays, anything less is forgotten."""
        if self.berth.kind == "ram" and all(ticket.is_done and ticket.error is None for ticket in self.tickets()):
            self.berth.fill = Fill.FULL
        else:
            self.berth.forget()

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.berth.home_views if self.slot is None else self.berth.views_in(self.slot)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A unit on the device: its name and its tensors by the keys of the parcel."""

    name: str
    tensors: Mapping[str, torch.Tensor]


def views_of(parcel: Parcel, buffer: torch.Tensor, offsets: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Typed, shaped views of ``buffer``, one per tensor of ``parcel``."""
    with torch.inference_mode(False):
        return {
            place.name: buffer[offsets[place.name] : offsets[place.name] + place.view_bytes]
            .view(TORCH_DTYPES[place.wanted])
            .view(place.shape)
            for place in parcel.places
        }


@dataclass(slots=True)
class Counts:
    """What has been done so far."""

    visits: int = 0
    copied_bytes: int = 0
    read_bytes: int = 0
    host_waits: int = 0
