"""The memory plan of every served checkpoint, as the admission of new jobs makes it, for the status page."""

from __future__ import annotations

from dataclasses import dataclass

from yellowsound.memory.budget import format_bytes
from yellowsound.memory.machine import Machine
from yellowsound.memory.plan import Plan, PlanError
from yellowsound.memory.probe import this_machine
from yellowsound.request import ClipRequest
from yellowsound.serve.admission import Admission
from yellowsound.serve.served import FAKE, ServedModel
from yellowsound.serve.settings import Settings


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One checkpoint: its plan, or the ``reason`` why there is none."""

    name: str
    plan: Plan | None
    reason: str = ""


def card_words(settings: Settings, admission: Admission) -> str:
    """The card in words: name and memory, or why there is none."""
    if settings.ray is not None:
        return "on the machines of the Ray cluster"
    machine = admission.machine or this_machine(workers=settings.workers, cpu=settings.device == "cpu")
    return _words(machine)


def _words(machine: Machine) -> str:
    if machine.device != "cuda":
        return "none; clips are made on the processor"
    free, total = format_bytes(machine.vram_free_bytes), format_bytes(machine.vram_total_bytes)
    return f"{machine.name}, {total}, of which {free} were free when the server started"


def planned(model: ServedModel, admission: Admission) -> PlannedModel:
    """The plan for the checkpoint's own size and length."""
    try:
        found = admission.plan(model, ClipRequest(prompt="plan").resolve(model.defaults))
    except PlanError as error:
        return PlannedModel(model.name, None, str(error))
    reason = "a stand-in for tests has no weights to place" if model.source.startswith(FAKE) else "its machine plans it"
    return PlannedModel(model.name, found, "" if found else reason)
