"""Parcels: bytes find their slot from any offset; views are aligned as the device needs them."""

from __future__ import annotations

from pathlib import Path

from yellowsound.checkpoint import TensorEntry
from yellowsound.memory.extents import Move, Parcel

FILE, OTHER = Path("a.safetensors"), Path("b.safetensors")


def entry(name: str, dtype: str, count: int, offset: int, file: Path = FILE) -> TensorEntry:
    return TensorEntry(name, dtype, (count,), file, offset, count * (4 if dtype == "F32" else 2))


def build(*entries: TensorEntry, wanted: str = "BF16", line_bytes: int = 1) -> Parcel:
    return Parcel.build("u", {e.name: e for e in entries}, lambda _: wanted, line_bytes)


def test_neighbours_of_whole_alignments_are_one_read_and_one_copy() -> None:
    parcel = build(entry("a", "BF16", 256, 5008), entry("b", "BF16", 512, 5520))
    (extent,) = parcel.extents
    assert (extent.file_offset, extent.size_bytes, extent.needed_bytes) == (4096, 4096, 2448)
    assert parcel.moves == (Move(912, 0, 512 + 1024),)


def test_sizes_that_break_the_alignment_take_a_copy_each() -> None:
    parcel = build(entry("a", "BF16", 3, 4096), entry("b", "BF16", 5, 4102))
    assert parcel.moves == (Move(0, 0, 6), Move(6, 512, 10))
    assert [place.view_offset for place in parcel.places] == [0, 512]


def test_far_apart_and_other_files_are_reads_of_their_own() -> None:
    parcel = build(entry("a", "BF16", 8, 0), entry("b", "BF16", 8, 200_000), entry("c", "BF16", 8, 0, OTHER))
    assert [(e.file, e.file_offset, e.host_offset) for e in parcel.extents] == [
        (FILE, 0, 0),
        (FILE, 196_608, 4096),
        (OTHER, 0, 8192),
    ]
    assert parcel.host_bytes == 12_288


def test_a_cast_tensor_has_a_second_place_and_a_home_keeps_only_that() -> None:
    parcel = build(entry("a", "F32", 128, 0), entry("b", "BF16", 256, 512))
    a, b = parcel.places
    assert (a.slot_offset, a.view_offset, a.view_bytes, a.is_cast) == (0, 1024, 256, True)
    assert (b.slot_offset, b.view_offset, b.is_cast) == (512, 512, False)
    assert (parcel.slot_bytes, parcel.compact_bytes) == (1536, 1024)
    assert parcel.compact() == {"a": 0, "b": 512}


def test_on_a_cpu_tensors_keep_their_place_in_a_cache_line() -> None:
    parcel = build(entry("a", "BF16", 10, 24), entry("b", "F32", 10, 4440), wanted="BF16", line_bytes=64)
    a, b = parcel.places
    assert a.view_offset % 64 == 24 and parcel.compact()["a"] % 64 == 24
    assert b.view_offset % 512 == 0  # the library's cast makes a tensor of its own


def test_cuts_cover_every_move_once() -> None:
    parcel = build(entry("a", "BF16", 9000, 100), entry("b", "BF16", 7000, 18_100))
    cuts = parcel.cuts(4096)
    assert all(cut.extent.size_bytes <= 4096 for cut in cuts)
    assert sum(move.size_bytes for cut in cuts for move in cut.moves) == sum(m.size_bytes for m in parcel.moves)
    assert sum(cut.extent.needed_bytes for cut in cuts) == sum(extent.needed_bytes for extent in parcel.extents)
    ends = [move.slot_offset + move.size_bytes for cut in cuts for move in cut.moves]
    assert max(ends) <= parcel.slot_bytes


def test_an_empty_tensor_takes_no_read() -> None:
    parcel = build(entry("a", "BF16", 0, 4096), entry("b", "BF16", 4, 4096))
    assert parcel.moves == (Move(0, 0, 8),)
    assert build(entry("a", "BF16", 0, 4096)).extents == ()


def test_host_offsets_point_at_the_stored_bytes() -> None:
    parcel = build(entry("a", "BF16", 3, 4098), entry("b", "BF16", 5, 4104))
    assert [parcel.host_offset(place) for place in parcel.places] == [2, 8]
