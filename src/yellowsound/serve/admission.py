"""Refuses at submission what no memory plan fits, before anybody waits for it.

Looks at the machine once, before a worker has taken memory, and plans as the worker's engine will. Imports no torch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from yellowsound.request import ClipRequest
from yellowsound.serve.errors import ApiError
from yellowsound.serve.served import FAKE, ServedModel, ServedModels
from yellowsound.serve.settings import Settings

if TYPE_CHECKING:
    from yellowsound.memory.machine import Machine
    from yellowsound.memory.plan import Plan

_REMEMBERED = 256


class Admission:
    """Plans requests for the workers' machine. On Ray, whose machines are elsewhere, everything is let through."""

    def __init__(self, settings: Settings, models: ServedModels) -> None:
        self._settings = settings
        self._descriptions: dict[str, Any] = {}
        self._remembered = lru_cache(maxsize=_REMEMBERED)(self._refusal)
        self._machine: Machine | None = None
        real = [model for model in models.all if not model.source.startswith(FAKE)]
        if real and settings.ray is None:
            self._look(real)

    def check(self, model: ServedModel, request: ClipRequest, has_image: bool) -> None:
        """Raise ApiError 400 ``does_not_fit`` when the clip cannot be made on this machine."""
        if model.name not in self._descriptions:
            return
        refusal = self._remembered(model, replace(request, prompt="plan", image="picture" if has_image else None))
        if refusal is not None:
            raise ApiError(400, "does_not_fit", f"this clip {refusal}", "size")

    def _look(self, models: list[ServedModel]) -> None:
        from yellowsound.checkpoint import Checkpoint
        from yellowsound.memory.peaks import load_peaks
        from yellowsound.memory.probe import this_machine
        from yellowsound.memory.units import Dtype, describe

        settings = self._settings
        self._machine = this_machine(workers=settings.workers, cpu=settings.device == "cpu")
        self._peaks = load_peaks(card=self._machine.name)
        self._dtype: Dtype = "bfloat16" if self._machine.device == "cuda" else "float32"
        for model in models:
            self._descriptions[model.name] = describe(Checkpoint.open(model.source), self._dtype)

    @property
    def machine(self) -> Machine | None:
        """The machine as it was before workers took memory; None on Ray or with stand-ins only."""
        return self._machine

    def plan(self, model: ServedModel, request: ClipRequest) -> Plan | None:
        """The plan a worker will make for a resolved request; None where ``machine`` is. Raises PlanError."""
        from yellowsound.memory.geometry import Geometry
        from yellowsound.memory.plan import plan

        if model.name not in self._descriptions or self._machine is None:
            return None
        settings = self._settings
        return plan(
            self._machine,
            self._descriptions[model.name],
            Geometry.of(request, self._dtype),
            vram_bytes=settings.vram_bytes,
            ram_bytes=None if settings.ram_bytes is None else settings.ram_bytes // settings.workers,
            peaks=self._peaks,
            expand=request.expand_prompt,
        )

    def _refusal(self, model: ServedModel, request: ClipRequest) -> str | None:
        from yellowsound.memory.plan import PlanError

        try:
            self.plan(model, request)
        except PlanError as error:
            return str(error)
        return None
