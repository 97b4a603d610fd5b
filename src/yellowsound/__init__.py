"""yellowsound: short videos with sound from Kandinsky 6 on machines smaller than the model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Clip", "ClipRequest", "Engine", "Recipe", "__version__"]

_HOMES = {"Engine": "engine", "ClipRequest": "request", "Clip": "clip", "Recipe": "recipe"}

if TYPE_CHECKING:
    from yellowsound.clip import Clip
    from yellowsound.engine import Engine
    from yellowsound.recipe import Recipe
    from yellowsound.request import ClipRequest


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs nothing."""
    if name in _HOMES:
        return getattr(import_module(f"yellowsound.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'yellowsound' has no attribute {name!r}")
