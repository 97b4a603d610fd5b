"""Sessions of ``streaming.py``: what runs in one process under one set of caps, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.workload import MAIN, SMOKE, Shape, Weights

if TYPE_CHECKING:
    from common.engines import Place
    from common.results import Results

    from yellowsound.checkpoint import Checkpoint

CARD_32, HOST_60 = 32_000_000_000, 60_000_000_000
CARD_16, HOST_32 = 16_000_000_000, 32_000_000_000


@dataclass(frozen=True, slots=True)
class Session:
    """A name, the weights and the caps it runs under (bytes; None: none), and the names of its rows in order."""

    name: str
    weights: Weights
    card_bytes: int | None
    host_bytes: int | None
    rows: tuple[str, ...]
    seconds: float  # about what all rows take on an H200 once the weights are on disk

    @property
    def caps(self) -> dict[str, int | None]:
        """What was asked for; what is in force is the place's."""
        return {"card_bytes": self.card_bytes, "host_bytes": self.host_bytes}

    def row(self, what: str) -> str:
        return f"{self.name}.{what}.{self.weights.name}"


@dataclass(slots=True)
class Context:
    """A session that runs: its results, checkpoint and place."""

    session: Session
    results: Results
    checkpoint: Checkpoint
    place: Place
    folder: Path
    is_smoke: bool
    free_before_bytes: int | None = None

    @property
    def blocks(self) -> int:
        return int(self.checkpoint.components["transformer"].config["num_visual_blocks"])

    def shape(self, **changes: Any) -> Shape:
        """A geometry by its fields; in a smoke run the small one with the same picture and guidance."""
        if self.is_smoke:
            return Shape(
                SMOKE.width, SMOKE.height, SMOKE.frames, changes.get("tail", False), changes.get("guidance", 1.0)
            )
        return Shape(**{"width": MAIN.width, "height": MAIN.height, "frames": MAIN.frames, **changes})

    def measure(self, what: str, expected_seconds: float, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """One row of this session; failures and lack of time leave the other rows alone."""
        caps = {"card_bytes": self.place.card_bytes, "host_bytes": self.place.host_bytes, "asked": self.session.caps}
        about = {"session": self.session.name, "weights": self.session.weights.name, "blocks": self.blocks}
        name = self.session.row(what)
        return self.results.measure(name, expected_seconds, lambda: {**about, "caps": caps, **make()})

    def wants(self, what: str) -> bool:
        return self.results.is_wanted(self.session.row(what))


def sessions(blocks: int | None, small_blocks: int, smoke: bool) -> dict[str, Session]:
    """All sessions by name, most important first. ``blocks``: of the large checkpoint; None is the published 60."""

    def weights(like: str, count: int | None) -> Weights:
        return Weights(like, 4 if smoke else count, small=smoke)

    main = weights("pro-distill", blocks or 60)
    first, later = ("memory", "lap-one", "abba", "overlap"), ("512x320x25", "picture", "480x864", "ten-steps")
    listed = (
        Session("cap32", main, CARD_32, HOST_60, (*first, *later, "host-results"), 450),
        Session("cap16", main, CARD_16, HOST_32, ("disk-bound",), 120),
        Session("equality", weights("pro-distill", small_blocks), None, None, ("two-steps",), 60),
        Session("lite", weights("lite-distill", 32), CARD_32, HOST_60, ("resident",), 25),
        Session("w2", weights("pro", small_blocks // 2), None, None, ("block-major",), 80),
    )
    return {session.name: session for session in listed}
