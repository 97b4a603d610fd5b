"""Refusals of a plan: what does not fit, how much is missing, what would help."""

from __future__ import annotations

from typing import NoReturn

from yellowsound.memory.budget import format_bytes


class PlanError(ValueError):
    """A machine that cannot run this. One sentence: what does not fit, the bytes that are missing, a remedy.

    missing_bytes: how much more memory would do, 0 where it is not memory that lacks.
    """

    def __init__(self, message: str, missing_bytes: int = 0) -> None:
        self.missing_bytes = missing_bytes
        super().__init__(message)


def refuse(what: str, memory: str, missing_bytes: int, remedy: str) -> NoReturn:
    """Raise PlanError for ``what`` that lacks ``missing_bytes`` of ``memory``."""
    size = f"{format_bytes(missing_bytes)} ({missing_bytes} bytes)"
    raise PlanError(f"does not fit: {what} lacks {size} of {memory}; {remedy}", missing_bytes)
