"""The memory plan of every served checkpoint on this machine, as rows for the status page."""

from __future__ import annotations

from dataclasses import dataclass

from yellowsound.checkpoint import Checkpoint, CheckpointError
from yellowsound.memory.budget import format_bytes
from yellowsound.memory.geometry import Geometry
from yellowsound.memory.machine import Machine
from yellowsound.memory.plan import Plan, PlanError, plan
from yellowsound.memory.probe import this_machine
from yellowsound.memory.units import Dtype, describe
from yellowsound.request import ClipRequest, RequestError
from yellowsound.serve.served import FAKE, ServedModel
from yellowsound.serve.settings import Settings


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One checkpoint: its plan, or the ``reason`` why there is none."""

    name: str
    plan: Plan | None
    reason: str = ""


def machine_of(settings: Settings) -> Machine:
    """This machine as one worker of the server may use it."""
    return this_machine(workers=settings.workers, cpu=settings.device == "cpu")


def card_words(machine: Machine) -> str:
    """The card in words: name and memory, or that there is none."""
    if machine.device != "cuda":
        return "none; clips are made on the processor"
    free, total = format_bytes(machine.vram_free_bytes), format_bytes(machine.vram_total_bytes)
    return f"{machine.name}, {free} of {total} free"


def planned(model: ServedModel, machine: Machine, settings: Settings) -> PlannedModel:
    """The plan for the checkpoint's own size and length."""
    if model.source.startswith(FAKE):
        return PlannedModel(model.name, None, "a stand-in for tests has no weights to place")
    dtype: Dtype = "bfloat16" if machine.device == "cuda" else "float32"
    request = ClipRequest(prompt="plan").resolve(model.defaults)
    share = None if settings.ram_bytes is None else settings.ram_bytes // settings.workers
    try:
        description = describe(Checkpoint.open(model.source), dtype)
        geometry = Geometry.of(request, dtype)
        found = plan(machine, description, geometry, vram_bytes=settings.vram_bytes, ram_bytes=share)
    except (CheckpointError, PlanError, RequestError, OSError) as error:
        return PlannedModel(model.name, None, str(error))
    return PlannedModel(model.name, found)
