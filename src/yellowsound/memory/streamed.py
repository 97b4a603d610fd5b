"""Streamed models: the same parts, loaded through the reader and the conveyor as a plan says, left between stages."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.device import open_device
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.lora import Lora
from yellowsound.memory.parts import load_part
from yellowsound.memory.placement import Counts, arrange
from yellowsound.memory.plan import Plan
from yellowsound.memory.relief import shortfall
from yellowsound.memory.resident import NETWORKS, Models
from yellowsound.memory.stack import close_streamed, driver_of
from yellowsound.memory.text_loader import load_streamed_text_encoder
from yellowsound.memory.units import Home, units_of


class StreamedModels(Models):
    """Parts with the homes of one plan; ``report`` is told what fell back to a slower way."""

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
        self.plan, self._loras, self._report = plan, tuple(loras), report
        self._where = open_device(device)

    def leave(self, *names: str) -> None:
        """Give the device back what these parts held, except those whose home it is."""
        for name in names:
            if self.is_loaded(name) and not self._lives_on_device(name):
                self.drop(name)

    @contextmanager
    def generating(self) -> Iterator[Any]:
        """The text encoder with its head and eyes, in the homes of the plan's expansion stage; closed afterwards."""
        self.drop("qwen")
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
        try:
            yield model
        finally:
            close_streamed(model)

    def drop(self, *names: str) -> None:
        """Close and forget parts; without names, all of them."""
        for name in names or tuple(self._loaded):
            close_streamed(self._loaded.get(name))
            self._loaded.pop(name, None)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _load_network(self, name: str) -> Any:
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
        return load_part(self.checkpoint, component, self._where, self.dtype, report=self._report)

    def _lives_on_device(self, name: str) -> bool:
        homes = [home for unit, home in self.plan.homes.items() if unit.split(".")[0] == NETWORKS[name][1]]
        return name == "transformer" or all(home is Home.VRAM for home in homes)

    def _blocks_to_give_back(self) -> int:
        """How many RAM homes must go so that the machine neither swaps nor kills us."""
        return -(-shortfall() // max(self.plan.slot_bytes, 1))

    def _homes_while_expanding(self) -> dict[str, Home]:
        """Nothing else needs the device then: as many layers as the plan says live there, the rest in host memory."""
        assert self.plan.expansion is not None
        layers = [
            u.name for u in units_of(self.checkpoint).values() if (u.component, u.kind) == ("text_encoder", "layer")
        ]
        counts = Counts(self.plan.expansion.layers_in_vram, self.plan.expansion.layers_in_ram, 0)
        return dict(zip(layers, arrange(counts), strict=True))
