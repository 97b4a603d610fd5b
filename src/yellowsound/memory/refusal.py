"""Refusals of a plan: what does not fit, how much is missing, what would help."""

from __future__ import annotations

from typing import Literal, NoReturn

from yellowsound.memory.budget import after_reserve, format_bytes, format_need, more_memory
from yellowsound.memory.claims import CONTEXT_BYTES, SLACK_BYTES, Caps, device_budget, host_budget
from yellowsound.memory.machine import Machine

Memory = Literal["VRAM", "host memory"]


class PlanError(ValueError):
    """A machine that cannot run this. One sentence: what does not fit, the bytes that are missing, remedies.

    missing_bytes: how much more of ``memory`` would do: of a cap that is too low, of the card, of the whole host; 0
    where it is not memory that lacks. remedies: the first is about the memory itself.
    """

    def __init__(
        self, problem: str, missing_bytes: int = 0, memory: Memory | None = None, remedies: tuple[str, ...] = ()
    ) -> None:
        self.problem, self.missing_bytes, self.memory, self.remedies = problem, missing_bytes, memory, remedies
        super().__init__("; ".join(filter(None, (problem, ", or ".join(remedies)))))

    def advising(self, *remedies: str) -> PlanError:
        """The same with other remedies, for a caller that knows its options."""
        return PlanError(self.problem, self.missing_bytes, self.memory, remedies)


def refuse_device(machine: Machine, caps: Caps, what: str, lacking: int, *remedies: str) -> NoReturn:
    """Raise PlanError for ``what`` that is ``lacking`` bytes of the card's budget short."""
    aside = CONTEXT_BYTES[machine.device] + SLACK_BYTES[machine.device]
    limit = device_budget(machine, caps) + aside
    needed = limit + lacking
    own = ["raise --vram"] if caps.vram_bytes is not None and caps.vram_bytes < needed else []
    own += ["free memory of the card"] if machine.vram_free_bytes < needed else []
    if machine.vram_total_bytes < needed:
        own = ["use a larger card"]
    what = f"{what} and {format_bytes(aside)} for context and slack, in {format_bytes(limit)}"
    _refuse(what, lacking, "VRAM", " and ".join(own), *remedies)


def refuse_cap(cap_bytes: int, what: str, lacking: int, *remedies: str) -> NoReturn:
    """Raise PlanError for ``what`` that is ``lacking`` bytes short of --vram, which on a processor is for weights."""
    _refuse(f"{what}, in {format_bytes(cap_bytes)}", lacking, "VRAM", "raise --vram", *remedies)


def refuse_host(machine: Machine, caps: Caps, what: str, lacking: int, *remedies: str) -> NoReturn:
    """Raise PlanError for ``what`` that is ``lacking`` bytes of a worker's host memory short."""
    budget = host_budget(machine, caps)
    needed = budget + lacking
    own = ["raise --ram"] if caps.ram_bytes is not None and caps.ram_bytes < needed else []
    own += ["free host memory"] if more_host(machine, Caps(), needed) else []
    if after_reserve(machine.ram_total_bytes, machine.ram_total_bytes) < needed:
        own = ["use a host with more memory"]
    missing = more_host(machine, caps, needed)
    reserve = missing // machine.workers - lacking
    told = "host memory" + (f" for {machine.workers} workers" if machine.workers > 1 else "")
    told += f", {format_need(reserve)} of a share being the reserve's" if reserve else ""
    _refuse(f"{what}, in {format_bytes(budget)}", missing, "host memory", " and ".join(own), *remedies, told=told)


def _refuse(what: str, missing: int, memory: Memory, *remedies: str, told: str = "") -> NoReturn:
    sizes = f"{format_need(missing)} ({missing} bytes)"
    problem = f"does not fit: {what}: lacks {sizes} of {told or memory}"
    raise PlanError(problem, missing, memory, remedies)


def more_host(machine: Machine, caps: Caps, budget_bytes: int) -> int:
    """What --ram and the whole host must grow by for a worker's budget of ``budget_bytes``; 0 where it is there.

    The reserve grows with the host, and every worker needs the same.
    """
    share = more_memory(budget_bytes, machine.ram_total_bytes, machine.ram_available_bytes)
    capped = 0 if caps.ram_bytes is None else budget_bytes - caps.ram_bytes
    return max(share, capped, 0) * machine.workers
