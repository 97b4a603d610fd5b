"""Leaving: how a model that streams gives memory back, for a while or for good, whatever it consists of."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

_CLOSE, _REST = "yellowsound_close", "yellowsound_rest"


class Closes(Protocol):
    """Has memory, threads or files to give back."""

    def close(self) -> None: ...


class Rests(Protocol):
    """Has device memory that only a stage needs; ``wake`` brings it back from where its weights live."""

    def rest(self) -> None: ...

    def wake(self) -> None: ...


def closing_with(model: nn.Module, *parts: Closes) -> None:
    """Let ``close_streamed(model)`` close these, in this order."""
    model.__dict__[_CLOSE] = parts


def resting_with(model: nn.Module, *parts: Rests) -> None:
    """Let ``rest_streamed(model)`` and ``wake_streamed(model)`` reach these, in this order."""
    model.__dict__[_REST] = parts


def close_streamed(model: Any) -> None:
    """Stop whatever streams ``model``: no thread, file, registration or device memory is left."""
    for part in getattr(model, "__dict__", {}).get(_CLOSE, ()):
        part.close()


def rest_streamed(model: Any) -> None:
    """Give the device back what only a stage of ``model`` needs; weights stay in the homes they have."""
    for part in getattr(model, "__dict__", {}).get(_REST, ()):
        part.rest()


def wake_streamed(model: Any) -> None:
    """Make a resting model ready to run: from its homes, and from disk only what lives there. Raises ReadError."""
    for part in getattr(model, "__dict__", {}).get(_REST, ()):
        part.wake()
