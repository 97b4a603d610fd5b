"""Machines and descriptions that planner tests share."""

from __future__ import annotations

import functools

from yellowsound.memory.geometry import Geometry
from yellowsound.memory.machine import Machine, Rates
from yellowsound.memory.units import Dtype, ModelDescription, describe
from yellowsound.weights.manifests import components_for

GIB = 1 << 30
W1 = Geometry(frames=121, height=480, width=864)
FAST = Rates(gemm_flops=800e12, attention_flops=575e12, memory_bytes=4.3e12, block_seconds=0.08)
SLOW = Rates(gemm_flops=210e12, attention_flops=232e12, memory_bytes=1.79e12, block_seconds=0.385)


@functools.cache
def published(name: str, dtype: Dtype = "bfloat16", hoisted: bool = True) -> ModelDescription:
    return describe(components_for(name), dtype, name=name, hoisted=hoisted)


def card(
    vram_gib: float = 31.3,
    ram_gib: float = 60,
    *,
    link: float = 50e9,
    disk: float = 3.5e9,
    rates: Rates = SLOW,
    pins: int | None = None,
    free_gib: float | None = None,
) -> Machine:
    """A card in a host whose memory is all available."""
    return Machine(
        name="test card",
        device="cuda",
        vram_total_bytes=int(vram_gib * GIB),
        vram_free_bytes=int((vram_gib if free_gib is None else free_gib) * GIB),
        ram_total_bytes=int(ram_gib * GIB),
        ram_available_bytes=int(ram_gib * GIB),
        link_bytes_per_second=link,
        disk_bytes_per_second=disk,
        rates=rates,
        pin_limit_bytes=pins,
    )


def processor(ram_gib: float = 16) -> Machine:
    """A host without a card."""
    return Machine(
        name="CPU",
        device="cpu",
        vram_total_bytes=int(ram_gib * GIB),
        vram_free_bytes=int(ram_gib * GIB),
        ram_total_bytes=int(ram_gib * GIB),
        ram_available_bytes=int(ram_gib * GIB),
        link_bytes_per_second=8e9,
        disk_bytes_per_second=3.5e9,
        rates=Rates(gemm_flops=1e11, attention_flops=1e11, memory_bytes=8e9, block_seconds=600),
    )
