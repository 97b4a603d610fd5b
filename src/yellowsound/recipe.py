"""Recipe: which speed switches a run may use. Data only; speed/ implements them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
