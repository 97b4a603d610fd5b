"""Expansion: where the text encoder's layers are while the prompt is expanded, and what one token costs.

Every token passes all layers. Nothing else needs the device then, so as many as fit stay there and the rest come from
host memory; from disk a token would take many seconds, so that is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from yellowsound.memory.budget import format_bytes
from yellowsound.memory.claims import (
    TEXT_SLOTS,
    Caps,
    Question,
    claims_of,
    device_budget,
    device_bytes,
    host_budget,
    largest,
    ring_size,
)
from yellowsound.memory.layout import Layout
from yellowsound.memory.machine import Machine
from yellowsound.memory.peaks import computed_peak
from yellowsound.memory.placement import DERATING, MEMCPY_BYTES_PER_SECOND
from yellowsound.memory.refusal import PlanError, refuse_device, refuse_host
from yellowsound.memory.units import Home, ModelDescription

USUAL_TOKENS = 300
SECONDS_PER_TOKEN_LIMIT = 1.0  # five minutes for a usual prompt
REMEDY = "expand the prompt elsewhere and pass the result, or leave expansion off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Layers by place while a prompt is expanded, and seconds a token. ``vram_bytes``: the stage's peak.

    empties_vram, empties_ram: the homes there do not fit beside it; they are given up and read again in lap one.
    """

    layers_in_vram: int
    layers_in_ram: int
    seconds_per_token: float
    vram_bytes: int
    ram_bytes: int
    empties_vram: bool
    empties_ram: bool


@dataclass(frozen=True, slots=True)
class Division:
    """Layers by place; bytes on the device, the parts outside the layers included, and in host memory."""

    in_vram: int
    in_ram: int
    vram_bytes: int
    ram_bytes: int


def divide_layers(asked: Question) -> Division:
    """Divide the text encoder for generation. Raises PlanError if it does not fit."""
    machine, model, geometry, caps = asked.machine, asked.model, asked.geometry, asked.caps
    claims, ring = claims_of(asked, "tiled"), ring_size(model)
    layers = model.of("text_encoder", "layer")
    if not layers:
        raise PlanError(f"{model.name or 'the checkpoint'} has no text encoder, so prompts cannot be expanded")
    layer, slot = largest(layers, "device_bytes"), largest(layers, "slot_bytes")
    cache = model.text_layers_kv_bytes * (geometry.text_tokens + 2 * USUAL_TOKENS)
    fixed = device_bytes((*model.of("text_encoder", "rest", "vision", "head"), *model.of("transformer", "rest")))
    fixed += computed_peak("text", model, geometry) + cache + claims.loras
    host = host_budget(machine, caps) - claims.host - ring.bytes
    process = f"{format_bytes(claims.host + ring.bytes)} of the process"
    room = (host if machine.device == "cpu" else device_budget(machine, caps)) - fixed
    every = len(layers) * layer
    if machine.device == "cpu" and room < every:
        what = f"prompt expansion ({format_bytes(fixed)}) beside {len(layers)} layers ({format_bytes(every)})"
        refuse_host(machine, caps, f"{what}, {process}", every - room, REMEDY)
    in_vram = len(layers) if room >= every else max((room - TEXT_SLOTS * slot) // layer, 0)
    in_ram = len(layers) - in_vram
    if in_ram and room < TEXT_SLOTS * slot:
        what = f"prompt expansion ({format_bytes(fixed)}) beside {TEXT_SLOTS} slots of {format_bytes(slot)}"
        refuse_device(machine, caps, what, TEXT_SLOTS * slot - room, REMEDY)
    held = in_ram * largest(layers, "ram_bytes")
    if held > host:
        what = f"prompt expansion: {in_ram} layers of the text encoder ({format_bytes(held)}) beside {process}"
        refuse_host(machine, caps, what, held - host, REMEDY)
    return Division(in_vram, in_ram, fixed + in_vram * layer + (TEXT_SLOTS * slot if in_ram else 0), held)


def plan_expansion(
    machine: Machine, model: ModelDescription, caps: Caps, layout: Layout, division: Division
) -> Expansion:
    """What a token costs, and which homes make room. Raises PlanError where a token takes too long."""
    in_ram, layers = division.in_ram, division.in_vram + division.in_ram
    seconds = _seconds_per_token(machine, model, in_ram, layout.pinned)
    if seconds > SECONDS_PER_TOKEN_LIMIT:
        passing = f": {in_ram} of {layers} layers pass the link for every token" if in_ram else ""
        problem = f"prompt expansion would take {seconds:.1f} s a token, {SECONDS_PER_TOKEN_LIMIT:.0f} s is the limit"
        raise PlanError(problem + passing, remedies=(REMEDY,))
    host = host_budget(machine, caps) - layout.claims.host - layout.ring.bytes
    on_device, in_host = homes_bytes(model, layout)
    vram, ram = division.vram_bytes + on_device, division.ram_bytes + in_host
    if machine.device == "cpu":  # one memory serves as both
        empties = vram + ram > host, vram + ram > host
    else:
        empties = vram > device_budget(machine, caps), ram > host
    return Expansion(
        layers_in_vram=division.in_vram,
        layers_in_ram=in_ram,
        seconds_per_token=seconds,
        vram_bytes=division.vram_bytes,
        ram_bytes=division.ram_bytes,
        empties_vram=empties[0] and on_device > 0,
        empties_ram=empties[1] and in_host > 0,
    )


def homes_bytes(model: ModelDescription, layout: Layout) -> tuple[int, int]:
    """What the homes of the plan take on the device and in host memory."""
    moving = [unit for unit in model.units if unit not in model.of("transformer", "rest")]
    on_device = device_bytes(unit for unit in moving if layout.homes[unit.name] is Home.VRAM)
    return on_device, sum(unit.ram_bytes for unit in moving if layout.homes[unit.name] is Home.RAM)


def _seconds_per_token(machine: Machine, model: ModelDescription, in_ram: int, pinned: bool) -> float:
    """All weights are read once from device memory; those in host memory cross the link first, at the same time."""
    layers = model.of("text_encoder", "layer")
    every = sum(u.stored_bytes for u in (*layers, *model.of("text_encoder", "head")))
    link = machine.link_bytes_per_second
    if not pinned and machine.device == "cuda":
        link = min(link, MEMCPY_BYTES_PER_SECOND)
    moved = in_ram * largest(layers, "stored_bytes")
    return max(every / machine.rates.memory_bytes, moved / link) / DERATING
