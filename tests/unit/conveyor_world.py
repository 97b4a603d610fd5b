"""A world of small units in one file, and a drive of a conveyor over it that checks every byte as a block would."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from yellowsound.checkpoint import TensorEntry
from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.device import Fence, Stream
from yellowsound.memory.extents import Parcel
from yellowsound.memory.fake_device import FakeDevice, Order
from yellowsound.memory.fake_reader import FakeReader
from yellowsound.memory.visit import TORCH_DTYPES, HomeKind, Loaded

ORDERS: tuple[Order, ...] = ("early", "late", "copies_first", "blocks_first", "random")
PAGE = 4096


@dataclass
class World:
    """Units named u0, u1, ...: their parcels and the tensors a block must find."""

    parcels: dict[str, Parcel]
    expected: dict[str, dict[str, torch.Tensor]]
    file: Path

    def faults(self, loaded: Loaded) -> list[str]:
        """The tensors of ``loaded`` that are not byte for byte what the file says."""
        wanted = self.expected[loaded.name]
        return [
            f"{loaded.name}.{name}"
            for name, tensor in wanted.items()
            if not torch.equal(loaded.tensors[name].contiguous().view(torch.uint8), tensor.view(torch.uint8))
        ]


def make_world(folder: Path, units: int, seed: int, *, biggest: int = 9000) -> World:
    """``units`` units of one to four tensors in mixed dtypes and odd sizes, packed into one file at odd offsets."""
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    data, offset = bytearray(b"\x01" * 8 * chance.randint(1, 70)), 0
    entries: dict[str, dict[str, TensorEntry]] = {}
    expected: dict[str, dict[str, torch.Tensor]] = {}
    file = folder / f"world-{units}-{seed}.bin"
    for unit in range(units):
        entries[f"u{unit}"], expected[f"u{unit}"] = {}, {}
        for index in range(chance.randint(1, 4)):
            name, stored = f"t{index}", chance.choice(["F32", "BF16", "F32"])
            count = chance.choice([1, 3, 128, 512, chance.randint(1, biggest // 4)])
            tensor = torch.randn(count, generator=generator).to(TORCH_DTYPES[stored])
            raw = tensor.view(torch.uint8).numpy().tobytes()
            offset = len(data)
            entries[f"u{unit}"][name] = TensorEntry(name, stored, (count,), file, offset, len(raw))
            data += raw
            keeps = stored == "BF16" or index == 0
            expected[f"u{unit}"][name] = tensor if keeps else tensor.to(torch.bfloat16)
        data += b"\x02" * chance.choice([0, 8, 520, 5000, 70_000])
    file.write_bytes(data)
    parcels = {unit: Parcel.build(unit, tensors, _wanted) for unit, tensors in entries.items()}
    return World(parcels, expected, file)


def _wanted(entry: TensorEntry) -> str:
    return "F32" if entry.dtype == "F32" and entry.name == "t0" else "BF16"


@dataclass
class Drive:
    """One conveyor on one fake device over a world; ``faults`` collects what blocks found wrong."""

    world: World
    homes: Mapping[str, HomeKind]
    slots: int = 2
    ring: int = 3
    chunk: int = PAGE
    order: Order = "random"
    seed: int = 0
    omit: frozenset[Fence] = frozenset()
    unrecorded: frozenset[Fence] = frozenset()
    pins: bool = True
    has_room: Callable[[int], bool] = lambda size_bytes: True
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = FakeDevice(self.order, self.seed, omit=self.omit, unrecorded=self.unrecorded, pins=self.pins)
        self.reader = FakeReader(self.seed, omit=self.omit)
        self.conveyor = Conveyor(
            self.device,
            self.reader,
            self.world.parcels,
            self.homes,
            slots=self.slots,
            ring_bytes=self.ring * self.chunk,
            chunk_bytes=self.chunk,
            has_room=self.has_room,
        )
        self.names = list(self.world.parcels)

    def lap(self, order: Sequence[str] | None = None, following: Sequence[str] | None = None) -> None:
        order = self.names if order is None else list(order)
        self.conveyor.begin_lap(order, self.names if following is None else following)
        for name in order:
            self.block(name)

    def block(self, name: str, *, release: bool = True) -> None:
        loaded = self.conveyor.acquire()
        assert loaded.name == name
        self.device.run(self._check(loaded), Stream.COMPUTE)
        if release:
            self.conveyor.release()

    def end(self) -> list[str]:
        """Close without a pause, then let everything that is still queued run."""
        self.conveyor.close()
        self.device.drain()
        self.reader.close()
        return self.faults

    def _check(self, loaded: Loaded) -> Callable[[], None]:
        return lambda: self.faults.extend(self.world.faults(loaded))


def lay(kinds: str) -> dict[str, HomeKind]:
    """Homes from letters: V, R (RAM) and D in the order of the units."""
    words: dict[str, HomeKind] = {"V": "vram", "R": "ram", "D": "disk"}
    return {f"u{index}": words[letter] for index, letter in enumerate(kinds)}
