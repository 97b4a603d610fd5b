"""Machine: what one worker may count on, as plain numbers. Data only; budget.py finds them, presets know some."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Basis = Literal["measured", "computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast a device computes, in operations and bytes a second, as reached (not as promised by a data sheet).

    block_seconds: one fused Pro block at 864x480x121, BF16, eager, exact. ``basis`` says whether that was measured
    on such a card or computed from the three rates before it. lite_block_seconds: the same of Lite, where measured.
    """

    gemm_flops: float
    attention_flops: float
    memory_bytes: float
    block_seconds: float
    basis: Basis = "computed"
    lite_block_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory and speeds. Bytes, and bytes a second before any derating.

    vram_total_bytes: usable size of the card; decides what must not depend on the moment (decode plan, slots).
    vram_free_bytes: free now. ram_available_bytes: what may be taken now without swapping, reserve not yet deducted.
    pin_limit_bytes: most that can be page-locked, None where no limit is known. workers: how many share the host.
    """

    name: str
    device: Literal["cuda", "cpu"]
    vram_total_bytes: int
    vram_free_bytes: int
    ram_total_bytes: int
    ram_available_bytes: int
    link_bytes_per_second: float
    disk_bytes_per_second: float
    rates: Rates
    pin_limit_bytes: int | None = None
    workers: int = 1
    notes: tuple[str, ...] = ()

    def for_one_of(self, workers: int) -> Machine:
        """One worker's share of a host that several use at once: memory, pins, disk and link divided evenly."""
        if workers < 1:
            raise ValueError(f"workers={workers}: at least 1")
        return replace(
            self,
            ram_available_bytes=self.ram_available_bytes // workers,
            ram_total_bytes=self.ram_total_bytes // workers,
            pin_limit_bytes=None if self.pin_limit_bytes is None else self.pin_limit_bytes // workers,
            link_bytes_per_second=self.link_bytes_per_second / workers,
            disk_bytes_per_second=self.disk_bytes_per_second / workers,
            workers=workers,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
