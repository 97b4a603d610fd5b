"""The engines a worker holds: one per checkpoint and recipe, several only where they fit side by side."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from yellowsound.serve.worker_protocol import FAKE, WorkerOptions

SIDE_BY_SIDE_SHARE = 0.6  # of the device's free memory that two checkpoints together may weigh


class EngineShelf:
    """Loads engines when they are asked for and lets go of others that would not fit beside them."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._engines: dict[tuple[str, str], Any] = {}

    def loaded(self, source: str, recipe: str) -> Any:
        """The engine if it is there, else None."""
        return self._engines.get((source, recipe))

    def engine(self, source: str, recipe: str) -> Any:
        """The engine of a checkpoint and recipe, loaded now if need be. Raises what loading raises."""
        key = (source, recipe)
        if key not in self._engines:
            self._make_room(source)
            self._engines[key] = _load(source, recipe, self._options)
        return self._engines[key]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def _make_room(self, source: str) -> None:
        if not self._engines or source.startswith(FAKE):
            return
        sources = {source, *(known for known, _ in self._engines)}
        if sum(_size_bytes(s) for s in sources) > SIDE_BY_SIDE_SHARE * _free_bytes(self._options):
            self.close()
            gc.collect()


def _load(source: str, recipe: str, options: WorkerOptions) -> Any:
    if source.startswith(FAKE):
        if not options.allow_fake_engines:
            raise ValueError(f"{source}: fake engines are for tests only")
        from yellowsound.serve.fake_engine import FakeEngine

        return FakeEngine(source)
    return load_engine(source, recipe, options)


def load_engine(source: str, recipe: str, options: WorkerOptions) -> Any:
    """A real engine on this worker's device and share of memory. Raises CheckpointError and device errors."""
    from yellowsound.engine import Engine
    from yellowsound.recipe import find_recipe

    return Engine.load(
        source,
        device=options.device,
        recipe=find_recipe(recipe),
        vram_bytes=options.vram_bytes,
        ram_bytes=_ram_bytes(options),
    )


def _ram_bytes(options: WorkerOptions) -> int | None:
    """The most host memory this worker may take: its share of what there is, unless it was told."""
    if options.ram_bytes is not None or options.ram_share >= 1:
        return options.ram_bytes
    from yellowsound.memory.budget import host_memory

    return int(host_memory().budget_bytes * options.ram_share)


def _size_bytes(source: str) -> int:
    return sum(file.stat().st_size for file in Path(source).rglob("*.safetensors"))


def _free_bytes(options: WorkerOptions) -> int:
    import psutil

    from yellowsound.serve.worker_memory import free_vram_bytes

    free = free_vram_bytes()
    return int(psutil.virtual_memory().available * options.ram_share) if free is None else free
