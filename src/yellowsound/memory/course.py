"""Course: what a driver goes by: the order of units, the modulations of a block, one branch's call, and the seams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from yellowsound.events import CancelToken, OnEvent
from yellowsound.memory.shells import Lookup, Shell

Visual = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class Course:
    """Names of the units in order: fused blocks, their modulations, and each tower's text blocks."""

    blocks: tuple[str, ...]
    modulations: tuple[str, ...]
    texts: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Modulations:
    """The modulations of a fused block: their shell, where each one's row goes, and which time embedding it takes."""

    shell: Shell
    names: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    towers: tuple[int, ...]  # 0: the video's time embedding, 1: the audio's
    widths: tuple[int, ...]


@dataclass(slots=True)
class Call:
    """One branch's pass through the fused blocks: the block's arguments, and (step, branch) if they were hoisted."""

    args: tuple[Any, ...]
    place: tuple[int, int] | None

    @property
    def time_embed(self) -> tuple[Tensor, Tensor]:
        pair: tuple[Tensor, Tensor] = self.args[4]
        return pair


@dataclass(slots=True)
class Seams:
    """What others may hang in: asked and called between blocks and between steps, on the driving thread.

    cancel: looked at before each block. after_block: called with (block, branch, output). watch: how many RAM homes
    to give back now, asked before each step; ``on_event`` then tells a Replanned.
    """

    cancel: CancelToken = field(default_factory=CancelToken)
    after_block: Callable[[int, int, Visual], None] | None = None
    watch: Callable[[], int] | None = None
    on_event: OnEvent | None = None
