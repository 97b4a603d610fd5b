"""Streamed models: the same parts, loaded through the reader and the conveyor as a plan says, left between stages."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.events import Replanned
from yellowsound.memory.device import open_device
from yellowsound.memory.kept import load_part
from yellowsound.memory.leaving import close_streamed, rest_streamed, wake_streamed
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.lora import Lora
from yellowsound.memory.placement import Counts, arrange
from yellowsound.memory.plan import Plan
from yellowsound.memory.relief import shortfall
from yellowsound.memory.resident import NETWORKS, STAGE_PARTS, Models
from yellowsound.memory.stack import driver_of, prefill
from yellowsound.memory.text_loader import load_streamed_text_encoder
from yellowsound.memory.units import Home, units_of
from yellowsound.memory.visit import HomeKind


class StreamedModels(Models):
    """Parts with the homes of one plan; ``report`` is told what fell back to a slower way."""

    wanted_early = ("transformer",)

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        plan: Plan,
        loras: Sequence[Lora] = (),
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        super().__init__(checkpoint, device, dtype)
        self.plan, self._loras, self._listener = plan, tuple(loras), report
        self._where = open_device(device, self._report)
        self._resting: dict[str, Any] = {}
        self._given_up: set[str] = set()  # units whose RAM home the machine needed

    def follow(self, plan: Plan, report: Callable[[str], None]) -> None:
        self.plan = replace(plan, homes={**plan.homes, **dict.fromkeys(self._given_up, Home.DISK)})
        self._listener = report

    def leave(self, *names: str) -> None:
        """Give the device back what these parts held, except those whose home it is; they rest in their homes."""
        leaving = [name for name in names if self.is_loaded(name) and not self._lives_on_device(name)]
        for name in leaving:
            self._resting[name] = self._loaded.pop(name)
            rest_streamed(self._resting[name])
        if leaving:
            self._empty_device_cache()

    def read_ahead(self) -> None:
        """Let the disk bring what the next lap of the transformer needs, into its homes, slots and ring."""
        prefill(self.transformer)

    @contextmanager
    def generating(self) -> Iterator[Any]:
        """The text encoder with its head and eyes, in the homes of the plan's expansion stage; closed afterwards."""
        self._make_way()
        model, is_done = None, False
        try:
            model = load_streamed_text_encoder(
                self.checkpoint,
                self.plan,
                self._where,
                self.dtype,
                homes=self._homes_while_expanding(),
                generate=True,
                vision=True,
                report=self._report,
            )
            yield model
            is_done = True
        finally:
            close_streamed(model)
            self._take_back(is_done)

    def drop(self, *names: str) -> None:
        """Close and forget parts; without names, all of them."""
        for name in names or (*self._loaded, *self._resting):
            for parts in (self._loaded, self._resting):
                close_streamed(parts.pop(name, None))
        gc.collect()
        self._empty_device_cache()

    def _report(self, message: str) -> None:
        self._listener(message)

    def _empty_device_cache(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _load_network(self, name: str) -> Any:
        if name not in self._resting:
            return self._open_network(name)
        model = self._resting.pop(name)
        try:
            wake_streamed(model)
        except BaseException:
            close_streamed(model)
            raise
        return model

    def _open_network(self, name: str) -> Any:
        component = NETWORKS[name][1]
        if name == "transformer":
            model = load_streamed_transformer(
                self.checkpoint, self.plan, self._where, self.dtype, loras=self._loras, report=self._report
            )
            driver = driver_of(model)
            assert driver is not None
            driver.seams.watch = self._blocks_to_give_back
            return model
        if name == "qwen":
            return load_streamed_text_encoder(self.checkpoint, self.plan, self._where, self.dtype, report=self._report)
        home = self.plan.homes[component]
        return load_part(self.checkpoint, component, self._where, self.dtype, home, report=self._report)

    def _lives_on_device(self, name: str) -> bool:
        return name == "transformer" or all(home is Home.VRAM for home in self._homes_of(name))

    def _homes_of(self, name: str) -> list[Home]:
        component = NETWORKS[name][1]
        not_here = {f"text_encoder.{kind}" for kind in ("head", "vision")}  # they come for expansion only
        return [
            home for unit, home in self.plan.homes.items() if unit.split(".")[0] == component and unit not in not_here
        ]

    def _make_way(self) -> None:
        """Leave the device, and whichever homes the plan says, to the expansion of a prompt."""
        assert self.plan.expansion is not None
        self.leave(*STAGE_PARTS)
        kinds: list[HomeKind] = ["vram"] if self.plan.expansion.empties_vram else []
        kinds += ["ram"] if self.plan.expansion.empties_ram else []
        parts = [name for name in STAGE_PARTS if any(self._homes_of(name).count(Home(kind)) for kind in kinds)]
        if parts:
            self.drop(*parts)
        driver = driver_of(self._loaded.get("transformer"))
        if driver is not None:
            driver.step_aside(kinds)
            self._empty_device_cache()

    def _take_back(self, is_done: bool) -> None:
        """Expansion is over; after an error nothing is read for a clip that will not be made."""
        self._empty_device_cache()
        driver = driver_of(self._loaded.get("transformer"))
        if driver is not None and (is_done or driver.conveyor.has_slots):
            driver.step_back()
        elif driver is not None:
            self.drop("transformer")

    def _blocks_to_give_back(self) -> int:
        """How many RAM homes of blocks must go so that the machine neither swaps nor kills us; parts go first."""
        missing = shortfall()
        for name in reversed(STAGE_PARTS):
            if missing > 0 and name in self._resting:
                missing -= self._give_up(name)
        return -(-max(missing, 0) // max(self.plan.slot_bytes, 1))

    def _give_up(self, name: str) -> int:
        """Turn the RAM homes of a resting part into disk homes; returns the bytes that were in them."""
        component = NETWORKS[name][1]
        units = units_of(self.checkpoint).values()
        lost = [u for u in units if u.component == component and self.plan.homes[u.name] is Home.RAM]
        if not lost:
            return 0
        self.drop(name)
        self._given_up |= {unit.name for unit in lost}
        self.follow(self.plan, self._listener)
        driver, freed = driver_of(self.transformer), sum(unit.ram_bytes for unit in lost)
        if driver is not None and driver.seams.on_event is not None:
            given = f"{component}, {freed / 2**30:.2f} GiB given back"
            driver.seams.on_event(
                Replanned(reason=f"host memory ran short ({given}): it is read from disk in every clip from now on")
            )
        return freed

    def _homes_while_expanding(self) -> dict[str, Home]:
        """Nothing else needs the device then: as many layers as the plan says live there, the rest in host memory."""
        assert self.plan.expansion is not None
        layers = [
            u.name for u in units_of(self.checkpoint).values() if (u.component, u.kind) == ("text_encoder", "layer")
        ]
        counts = Counts(self.plan.expansion.layers_in_vram, self.plan.expansion.layers_in_ram, 0)
        return dict(zip(layers, arrange(counts), strict=True))
