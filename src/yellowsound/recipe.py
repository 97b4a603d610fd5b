"""Recipe: which speed switches a run may use. Data only; the stages ask it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from yellowsound.request import RequestError

Level = Literal["exact", "reordered", "approximate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is allowed. The default allows nothing: bit-identical to diffusers.

    trim_text: cut right padding off the prompt instead of masking it (level reordered).
    """

    name: str = "exact"
    trim_text: bool = False

    @property
    def level(self) -> Level:
        return "reordered" if self.trim_text else "exact"


RECIPES = {recipe.name: recipe for recipe in (Recipe(), Recipe(name="trimmed", trim_text=True))}


def find_recipe(name: str) -> Recipe:
    """The recipe called ``name``. Raises RequestError."""
    if name not in RECIPES:
        raise RequestError("recipe", name, f"is not known; known: {', '.join(RECIPES)}", "exact")
    return RECIPES[name]
