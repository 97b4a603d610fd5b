"""Writing a synthetic checkpoint at disk speed: right names, shapes, dtypes and sizes, seeded random weights.

So that a machine can be measured before 80 GB are downloaded. Values come from one pool of normal numbers, read at
places that seed, tensor and position decide: writing then costs no more than the disk, and memory stays at the pool.
Standard deviation 0.02, norms one, biases zero, modulations ten times smaller, so that latents stay finite. What such
a checkpoint makes is noise, and errors or ranges measured on it say nothing about the published weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yellowsound.checkpoint_files import weight_stem
from yellowsound.request import RequestError
from yellowsound.weights.blueprint import Blueprint
from yellowsound.weights.direct_file import DirectFile
from yellowsound.weights.file_layout import FileLayout, Placed, lay_out
from yellowsound.weights.shapes import PartPlan

STD = 0.02
SMALL_STD = 0.002
POOL_VALUES = 1 << 24
CHUNK_BYTES = 4 << 20  # of one tensor, from one place in the pool
PIECE_BYTES = 8 << 20  # of the file, written at once
WRITERS = 4
_BYTES_OF = {"F32": 4, "BF16": 2, "F16": 2}

Bytes = npt.NDArray[np.uint8]
OnBytes = Callable[[int, int], None]  # written, total


@dataclass(frozen=True, slots=True)
class _Pool:
    """Normal numbers in every stored type, at both widths: bytes to copy from."""

    values: dict[tuple[str, float], npt.NDArray[np.uint8]]
    length: int

    @classmethod
    def fill(cls, seed: int, length: int) -> _Pool:
        normal = np.random.Generator(np.random.PCG64(seed)).standard_normal(length, dtype=np.float32)
        values = {}
        for std in (STD, SMALL_STD):
            scaled = normal * np.float32(std)
            for dtype in _BYTES_OF:
                values[dtype, std] = encode(scaled, dtype).view(np.uint8)
        return cls(values, length)


def encode(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """``values`` as stored in ``dtype``: float32, float16, or bfloat16 bits rounded to nearest even (as uint16)."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)


def synthesize(
    plan: Blueprint, out: Path, *, seed: int = 0, on_bytes: OnBytes | None = None, pool_values: int = POOL_VALUES
) -> int:
    """Write ``plan`` as folder ``out`` and return its weights' bytes. The same seed gives the same bytes.

    ``out`` appears under its name only when it is whole. Raises RequestError for a negative seed, FileExistsError,
    OSError when the disk has no room.
    """
    if seed < 0:
        raise RequestError("seed", seed, "must be 0 or more", 0)
    if out.exists():
        raise FileExistsError(f"{out} exists: give another folder, or remove it first")
    layouts = {part.name: lay_out(part.tensors) for part in plan.parts}
    total = sum(layout.size_bytes for layout in layouts.values())
    out.parent.mkdir(parents=True, exist_ok=True)
    _check_room(out.parent, total)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        _write_small_files(plan, partial, seed)
        tell = _counter(total, on_bytes)
        pool = _Pool.fill(seed, pool_values)
        for part in plan.parts:
            _write_weights(part, layouts[part.name], partial, pool, seed, tell)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return total


def _check_room(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free
    if free < needed + (64 << 20):
        raise OSError(f"{needed / 1e9:.2f} GB are needed on the disk of {place}, where {free / 1e9:.2f} GB are free")


def _write_small_files(plan: Blueprint, folder: Path, seed: int) -> None:
    for part in plan.parts:
        _write_json(folder / part.name / "config.json", part.config)
    for name, source in plan.tokenizers.items():
        shutil.copytree(source, folder / name)
    _write_json(folder / "scheduler" / "scheduler_config.json", plan.scheduler)
    _write_json(folder / "model_index.json", plan.model_index())
    own = {"name": plan.name, "synthetic": True, "absent": plan.absent, "note": f"random weights, seed {seed}"}
    _write_json(folder / "yellowsound.json", own)


def _write_json(file: Path, document: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _write_weights(
    part: PartPlan, layout: FileLayout, folder: Path, pool: _Pool, seed: int, tell: Callable[[int], None]
) -> None:
    file = folder / part.name / f"{weight_stem(part.name)}.safetensors"
    content = _Content(layout, pool, seed)
    with (
        DirectFile(file, layout.size_bytes) as target,
        ThreadPoolExecutor(WRITERS, initializer=target.prepare_thread) as writers,
    ):
        tasks = [
            writers.submit(_write_piece, target, content, begin, tell)
            for begin in range(0, layout.size_bytes, PIECE_BYTES)
        ]
        for task in tasks:
            task.result()


def _write_piece(target: DirectFile, content: _Content, begin: int, tell: Callable[[int], None]) -> None:
    size = min(PIECE_BYTES, content.layout.size_bytes - begin)
    content.fill(target.buffer[:size], begin)
    target.write(begin, size)
    tell(size)


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds at any place, without the file."""

    layout: FileLayout
    pool: _Pool
    seed: int

    def fill(self, buffer: Bytes, begin: int) -> None:
        """Put the file's bytes from ``begin`` on into ``buffer``."""
        end, head = begin + len(buffer), self.layout.head
        if begin < len(head):
            part = head[begin:end]
            buffer[: len(part)] = np.frombuffer(part, np.uint8)
        tensors = self.layout.tensors
        first = bisect_right(tensors, begin, key=lambda t: t.offset_bytes) - 1
        for tensor in tensors[max(first, 0) :]:
            if tensor.offset_bytes >= end:
                break
            self._fill_tensor(tensor, buffer, begin)

    def _fill_tensor(self, tensor: Placed, buffer: Bytes, begin: int) -> None:
        """The part of ``tensor`` that lies in ``buffer``, one chunk of values after another."""
        low = max(begin - tensor.offset_bytes, 0)
        high = min(begin + len(buffer) - tensor.offset_bytes, tensor.size_bytes)
        while low < high:
            chunk = low - low % CHUNK_BYTES
            stop = min(chunk + CHUNK_BYTES, high)
            values = _chunk(tensor, chunk, min(CHUNK_BYTES, tensor.size_bytes - chunk), self.pool, self.seed)
            place = tensor.offset_bytes - begin
            buffer[place + low : place + stop] = values[low - chunk : stop - chunk]
            low = stop


def _chunk(tensor: Placed, begin: int, size: int, pool: _Pool, seed: int) -> Bytes:
    width = _BYTES_OF[tensor.dtype]
    fixed = constant(tensor.name, tensor.shape)
    if fixed is not None:
        return encode(np.full(size // width, fixed, np.float32), tensor.dtype).view(np.uint8)
    source = pool.values[tensor.dtype, SMALL_STD if "modulation" in tensor.name else STD]
    length = min(size, pool.length * width)
    digest = hashlib.blake2b(f"{seed}/{tensor.name}/{begin}".encode(), digest_size=8).digest()
    start = int.from_bytes(digest, "little") % (pool.length - length // width + 1) * width
    piece = source[start : start + length]
    return np.resize(piece, size) if length < size else piece


def constant(name: str, shape: tuple[int, ...]) -> float | None:
    """The one value that tensor ``name`` is filled with: 1 for norms and spreads, 0 for biases; None if random."""
    last = name.rsplit(".", 1)[-1]
    if last in ("bias", "data_mean"):
        return 0.0
    is_one = last in ("data_std", "hann_window") or (last == "weight" and len(shape) == 1) or math.prod(shape) == 1
    return 1.0 if is_one else None


def _counter(total: int, on_bytes: OnBytes | None) -> Callable[[int], None]:
    lock, written = threading.Lock(), 0

    def tell(size: int) -> None:
        nonlocal written
        with lock:
            written += size
            if on_bytes is not None:
                on_bytes(written, total)

    return tell
