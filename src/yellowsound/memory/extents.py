"""Parcel: where the bytes of one unit lie in the file, in host memory and in a device slot.

Pure arithmetic. It knows offsets and alignments; it reads nothing and imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from yellowsound.checkpoint import TensorEntry
from yellowsound.memory.units import ALIGNMENT_BYTES, ITEM_BYTES, PAGE_BYTES, round_up

GAP_BYTES = 64 * 1024  # two tensors nearer than this are cheaper to read in one go


@dataclass(frozen=True, slots=True)
class Extent:
    """A page-aligned span of a file and its place in a host block; ``needed_bytes`` of it must exist."""

    file: Path
    file_offset: int
    size_bytes: int
    needed_bytes: int
    host_offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """One copy from host memory to a slot; the skew of the file is removed here."""

    host_offset: int
    slot_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor inside a slot: as stored at ``slot_offset``; as wanted at ``view_offset`` (the same if no cast)."""

    name: str
    shape: tuple[int, ...]
    stored: str
    wanted: str
    slot_offset: int
    stored_bytes: int
    view_offset: int
    view_bytes: int
    skew_bytes: int = 0  # kept from the file, see Parcel.build

    @property
    def is_cast(self) -> bool:
        return self.stored != self.wanted


@dataclass(frozen=True, slots=True)
class Cut:
    """One read of at most a chunk, and the moves (host offsets relative to the read) that empty it."""

    extent: Extent
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Parcel:
    """One unit: extents to read, moves into a slot, tensors to view there."""

    name: str
    extents: tuple[Extent, ...]
    moves: tuple[Move, ...]
    places: tuple[Place, ...]
    host_bytes: int
    slot_bytes: int

    @classmethod
    def build(
        cls, name: str, tensors: Mapping[str, TensorEntry], wanted: Callable[[TensorEntry], str], line_bytes: int = 1
    ) -> Parcel:
        """Pack ``tensors`` (by the name their view gets); ``wanted`` gives the dtype that a tensor runs in.

        A tensor that is not cast keeps its file offset modulo ``line_bytes``. On a CPU the libraries run on the mapped
        file, and products of one row choose their kernel by the address's place in a cache line: with another place
        the bits differ (7e-7 in float32).
        """
        ordered = sorted(tensors.items(), key=lambda item: (str(item[1].file), item[1].offset_bytes))
        entries = [entry for _, entry in ordered]
        extents = tuple(_extents(entries))
        places, slot_bytes = _places(ordered, wanted, line_bytes)
        host_bytes = extents[-1].host_offset + extents[-1].size_bytes if extents else 0
        return cls(name, extents, tuple(_moves(entries, places, extents)), tuple(places), host_bytes, slot_bytes)

    @property
    def compact_bytes(self) -> int:
        """What the unit takes once only the wanted dtypes are kept: a home on the device."""
        return sum(round_up(place.skew_bytes + place.view_bytes, ALIGNMENT_BYTES) for place in self.places)

    def compact(self) -> dict[str, int]:
        """Where each tensor lies in a home on the device."""
        offsets, end = {}, 0
        for place in self.places:
            offsets[place.name] = end + place.skew_bytes
            end += round_up(place.skew_bytes + place.view_bytes, ALIGNMENT_BYTES)
        return offsets

    def host_offset(self, place: Place) -> int:
        """Where the stored bytes of ``place`` lie in a host block."""
        for move in self.moves:
            if 0 <= place.slot_offset - move.slot_offset < move.size_bytes:
                return move.host_offset + place.slot_offset - move.slot_offset
        raise KeyError(place.name)

    def cuts(self, chunk_bytes: int) -> tuple[Cut, ...]:
        """The reads of at most ``chunk_bytes`` (a multiple of the page) that bring this unit."""
        return tuple(Cut(piece, tuple(self._moves_in(piece))) for piece in self._pieces(chunk_bytes))

    def _pieces(self, chunk_bytes: int) -> Iterator[Extent]:
        for extent in self.extents:
            for start in range(0, extent.size_bytes, chunk_bytes):
                size = min(chunk_bytes, extent.size_bytes - start)
                needed = min(size, extent.needed_bytes - start)
                yield Extent(extent.file, extent.file_offset + start, size, needed, extent.host_offset + start)

    def _moves_in(self, piece: Extent) -> Iterator[Move]:
        for move in self.moves:
            start = max(move.host_offset, piece.host_offset)
            end = min(move.host_offset + move.size_bytes, piece.host_offset + piece.size_bytes)
            if start < end:
                skip = start - move.host_offset
                yield Move(start - piece.host_offset, move.slot_offset + skip, end - start)


def _extents(entries: list[TensorEntry]) -> Iterator[Extent]:
    host = 0
    for run in _runs([entry for entry in entries if entry.size_bytes]):
        start = run[0].offset_bytes // PAGE_BYTES * PAGE_BYTES
        end = run[-1].offset_bytes + run[-1].size_bytes
        size = round_up(end - start, PAGE_BYTES)
        yield Extent(run[0].file, start, size, end - start, host)
        host += size


def _runs(entries: list[TensorEntry]) -> Iterator[list[TensorEntry]]:
    """Neighbours in the same file whose gap is not worth a read of its own."""
    run: list[TensorEntry] = entries[:1]
    for before, entry in pairwise(entries):
        gap = entry.offset_bytes - before.offset_bytes - before.size_bytes
        if entry.file != before.file or gap > GAP_BYTES:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _places(
    ordered: Iterable[tuple[str, TensorEntry]], wanted: Callable[[TensorEntry], str], line_bytes: int
) -> tuple[list[Place], int]:
    """Stored bytes first, cast targets behind them, every one at the allocator's alignment (and the file's skew)."""
    places: list[Place] = []
    end = 0
    for key, entry in ordered:
        dtype = wanted(entry)
        skew = entry.offset_bytes % line_bytes if dtype == entry.dtype else 0
        size = entry.size_bytes // ITEM_BYTES[entry.dtype] * ITEM_BYTES[dtype]
        start = end + skew
        places.append(Place(key, entry.shape, entry.dtype, dtype, start, entry.size_bytes, start, size, skew))
        end = round_up(start + entry.size_bytes, ALIGNMENT_BYTES)
    for index, place in enumerate(places):
        if place.is_cast:
            places[index] = replace(place, view_offset=end)
            end = round_up(end + place.view_bytes, ALIGNMENT_BYTES)
    return places, end


def _moves(entries: list[TensorEntry], places: list[Place], extents: tuple[Extent, ...]) -> Iterator[Move]:
    """One move per tensor, joined with its neighbour where file and slot advance alike."""
    last: Move | None = None
    for entry, place in zip(entries, places, strict=True):
        if not entry.size_bytes:
            continue
        host = _host_offset(entry, extents)
        skip = place.slot_offset - last.slot_offset if last else -1
        if last and host - last.host_offset == skip and skip - last.size_bytes < ALIGNMENT_BYTES:
            last = Move(last.host_offset, last.slot_offset, skip + entry.size_bytes)
            continue
        if last:
            yield last
        last = Move(host, place.slot_offset, entry.size_bytes)
    if last:
        yield last


def _host_offset(entry: TensorEntry, extents: tuple[Extent, ...]) -> int:
    for extent in extents:
        inside = entry.offset_bytes - extent.file_offset
        if extent.file == entry.file and 0 <= inside < extent.size_bytes:
            return extent.host_offset + inside
    raise AssertionError(f"{entry.name} lies in no extent")
