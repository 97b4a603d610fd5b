"""How the safetensors package lays a file out: header text and the place of every tensor. No torch.

Reproduces its order (widest dtype first, then by name) and padding, so that a file's size follows from names, dtypes
and shapes alone; the three published transformer sizes come out to the byte.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from yellowsound.safetensors_header import DTYPE_BYTES

# order of the package's own dtype enumeration, narrowest first
_ORDER = (
    "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16",
    "I32", "U32", "F32", "F64", "I64", "U64",
)  # fmt: skip
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Placed:
    """One tensor's place: ``offset_bytes`` from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file before it is written: its first bytes (length and header), its tensors in file order, its size."""

    head: bytes
    tensors: tuple[Placed, ...]
    size_bytes: int


def lay_out(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> FileLayout:
    """The layout of a file that holds ``tensors`` (dtype and shape by name)."""
    ordered = sorted(tensors, key=lambda name: (-_ORDER.index(tensors[name][0]), name))
    entries, end = {}, 0
    for name in ordered:
        dtype, shape = tensors[name]
        size = math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    head = struct.pack("<Q", len(header)) + header
    placed, position = [], len(head)
    for name in ordered:
        dtype, shape = tensors[name]
        size = math.prod(shape) * DTYPE_BYTES[dtype]
        placed.append(Placed(name, dtype, shape, position, size))
        position += size
    return FileLayout(head, tuple(placed), position)
