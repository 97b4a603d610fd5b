"""Layout: how device and host memory are divided, and the home every unit gets. Pure arithmetic.

Order of claims: what a stage cannot do without, then the blocks of the denoising loop (VRAM first, host memory next,
the rest on disk), then what is needed once in a clip. A later claim never takes from an earlier one, and once-a-clip
units get a home only when no block is on disk: that keeps every time monotone in every budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from yellowsound.memory.budget import GIB, format_bytes
from yellowsound.memory.claims import (
    TEXT_SLOTS,
    Caps,
    Claims,
    Ring,
    choose_decode,
    claims_of,
    device_budget,
    device_bytes,
    host_budget,
    largest,
    ring_size,
)
from yellowsound.memory.geometry import Decode, Geometry, Offload
from yellowsound.memory.machine import Machine
from yellowsound.memory.peaks import Peaks
from yellowsound.memory.placement import Counts, arrange, count
from yellowsound.memory.refusal import refuse
from yellowsound.memory.units import Home, ModelDescription, Unit

LARGE_CARD_BYTES = 28 * GIB  # from here on a third slot is cheap against what the card holds
SMALLER = "ask for fewer frames or a smaller size, or use a lite checkpoint"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The device's share: slots, blocks that live there, once-a-clip units that live there, bytes left."""

    slots: int
    slot_bytes: int
    blocks: int
    clip_units: tuple[Unit, ...]
    left: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The division that was found. Budgets and what is left of them in bytes."""

    homes: dict[str, Home]
    counts: Counts
    decode: Decode
    claims: Claims
    device: OnDevice
    text_slots: int
    text_slot_bytes: int
    ring: Ring
    pinned: bool
    results_home: Home
    device_budget: int
    host_budget: int
    host_left: int


def lay_out(
    machine: Machine,
    model: ModelDescription,
    geometry: Geometry,
    caps: Caps,
    offload: Offload,
    peaks: Peaks,
    lora_bytes: int = 0,
) -> Layout:
    """Divide the memory of a machine. Raises PlanError where even the smallest division does not fit."""
    decode = choose_decode(machine, model, geometry, caps, offload, peaks, lora_bytes)
    claims = claims_of(model, geometry, decode, peaks, machine.device, lora_bytes)
    ring = ring_size(model)
    host = host_budget(machine, caps)
    host_room = host - claims.host - ring.bytes
    budget = device_budget(machine, caps)
    if machine.device == "cpu":  # one memory serves as both
        budget = min(budget, host_room)
        if caps.vram_bytes is not None:
            budget = min(budget, caps.vram_bytes + claims.largest[1])
    waiting = clip_units(model, expand=False)  # head and eyes come with each expansion and leave with it
    remedy = _remedy(caps, decode, machine.device)
    device = _divide_device(machine, model, budget, claims, offload, waiting, remedy)
    if machine.device == "cpu":
        host_room -= budget - device.left
    if host_room < 0:
        refuse("the process with its ring and hoisted results", "host memory", -host_room, "free some or raise --ram")
    counts, in_ram, host_left = _divide_host(model, device, waiting, host_room)
    layer_slots = 0 if set(model.of("text_encoder", "layer")) <= set(device.clip_units) else TEXT_SLOTS
    return Layout(
        homes=_homes(model, counts, device.clip_units, in_ram),
        counts=counts,
        decode=decode,
        claims=claims,
        device=device,
        text_slots=layer_slots,
        text_slot_bytes=largest(model.of("text_encoder", "layer"), "slot_bytes") if layer_slots else 0,
        ring=_within_pins(ring, machine),
        pinned=machine.device == "cuda" and _can_pin(machine, model, device, ring.bytes + _results_in_ram(claims)),
        results_home=claims.results_home,
        device_budget=budget,
        host_budget=host,
        host_left=host_left,
    )


def clip_units(model: ModelDescription, expand: bool) -> tuple[Unit, ...]:
    """What is needed once in a clip, most useful home first.

    Lap one waits for text blocks and modulations; the decoders are used by every clip; the text encoder only by a new
    prompt; its head and its eyes only by prompt expansion, from disk, otherwise they are not read at all.
    """
    parts = [unit for name in ("vae", "audio_vae", "vocoder", "text_encoder_2") for unit in model.of(name)]
    extra = model.of("text_encoder", "head", "vision") if expand else ()
    lap_one = tuple(unit for unit in model.of("transformer", "text_block", "modulations") if unit.needed == "clip")
    return (*lap_one, *parts, *model.of("text_encoder", "rest", "layer"), *extra)


def _divide_device(
    machine: Machine,
    model: ModelDescription,
    budget: int,
    claims: Claims,
    offload: Offload,
    waiting: Sequence[Unit],
    remedy: str,
) -> OnDevice:
    """Slots and homes on the device. All blocks if they fit beside slots for lap one, else as many as fit."""
    stage, needed = claims.largest
    room = budget - claims.resident - needed
    streamed = [unit for unit in model.of("transformer") if unit.kind != "rest"]
    lap_slot = largest([unit for unit in streamed if unit.kind != "block"], "slot_bytes")
    slot, block = largest(streamed, "slot_bytes"), largest(model.blocks, "device_bytes")
    wanted = 3 if machine.vram_total_bytes >= LARGE_CARD_BYTES and offload != "block" else 2
    resident_left = room - len(model.blocks) * block - wanted * lap_slot
    if resident_left >= 0 and offload != "block":
        return _with_clip_units(OnDevice(wanted, lap_slot, len(model.blocks), (), resident_left), waiting, offload)
    if offload in ("none", "module"):
        refuse(f"--offload {offload}: all blocks of the transformer on the device", "VRAM", -resident_left,
               "use --offload auto, which streams what does not fit")  # fmt: skip
    slots = wanted if room >= wanted * slot else 2
    memory = "host memory" if machine.device == "cpu" and "raise --vram" not in remedy else "VRAM"
    if room < slots * slot:
        refuse(f"the {stage} stage ({format_bytes(needed)}) beside {slots} slots of {format_bytes(slot)} in "
               f"{format_bytes(max(budget, 0))}", memory, slots * slot - room, remedy)  # fmt: skip
    blocks = 0 if offload == "block" else count(len(model.blocks), block, 1, room - slots * slot, 0).vram
    return OnDevice(slots, slot, blocks, (), room - slots * slot - blocks * block)


def _remedy(caps: Caps, decode: Decode, device: str) -> str:
    if device == "cpu" and decode == "whole":
        return f"cap --ram to decode in tiles, raise --vram if it was given, or {SMALLER}"
    if caps.vram_bytes is not None:
        return f"raise --vram, or {SMALLER}"
    if device == "cpu":
        return f"this machine shows no card: plan for one with --device-preset rtx-5090, or {SMALLER}"
    return (
        f"free memory of the card, or {SMALLER}"
        if decode == "tiled"
        else f"cap --vram to decode in tiles, or {SMALLER}"
    )


def _with_clip_units(device: OnDevice, waiting: Sequence[Unit], offload: Offload) -> OnDevice:
    """The blocks are all in; what is left holds once-a-clip units, in their order."""
    if offload == "module":
        return device
    taken, left = prefix(waiting, device.left, "device_bytes")
    lap_one = {unit for unit in waiting if unit.component == "transformer"}
    if lap_one <= set(taken):  # nothing of the transformer moves: its slots are room again
        taken, left = prefix(waiting, device.left + device.slots * device.slot_bytes, "device_bytes")
        device = replace(device, slots=0, slot_bytes=0)
    if offload == "none" and len(taken) < len(waiting):
        missing = device_bytes(waiting[len(taken) :]) - left
        refuse("--offload none: every part on the device at once", "VRAM", missing, "use --offload auto")
    return replace(device, clip_units=taken, left=left)


def _divide_host(
    model: ModelDescription, device: OnDevice, waiting: Sequence[Unit], room: int
) -> tuple[Counts, tuple[Unit, ...], int]:
    """Blocks, then once-a-clip units in host memory; and what is left."""
    streamed = len(model.blocks) - device.blocks
    size = largest(model.blocks, "ram_bytes")
    in_ram = count(streamed, 1, size, 0, room).ram
    left = room - in_ram * size
    counts = Counts(device.blocks, in_ram, streamed - in_ram)
    if counts.disk:
        return counts, (), left
    taken, left = prefix(waiting[len(device.clip_units) :], left, "ram_bytes")
    return counts, taken, left


def prefix(units: Sequence[Unit], room: int, size: str) -> tuple[tuple[Unit, ...], int]:
    """The longest run of units from the first that fits, and the room left: more room never gives less."""
    for taken, unit in enumerate(units):
        if getattr(unit, size) > room:
            return tuple(units[:taken]), room
        room -= getattr(unit, size)
    return tuple(units), room


def _homes(
    model: ModelDescription, counts: Counts, on_device: Sequence[Unit], in_ram: Sequence[Unit]
) -> dict[str, Home]:
    """A home for every unit, in order of use; disk is where all come from."""
    homes = {unit.name: Home.DISK for unit in model.units}
    homes |= {unit.name: home for unit, home in zip(model.blocks, arrange(counts), strict=True)}
    homes |= {unit.name: Home.VRAM for unit in (*model.of("transformer", "rest"), *on_device)}
    return homes | {unit.name: Home.RAM for unit in in_ram}


def _can_pin(machine: Machine, model: ModelDescription, device: OnDevice, besides: int) -> bool:
    """Whether every streamed block could be page-locked, on disk now or not: more host memory must not unpin any."""
    if machine.pin_limit_bytes is None:
        return True
    streamed = len(model.blocks) - device.blocks
    return besides + streamed * largest(model.blocks, "ram_bytes") <= machine.pin_limit_bytes


def _results_in_ram(claims: Claims) -> int:
    return claims.results if claims.results_home is Home.RAM else 0


def _within_pins(ring: Ring, machine: Machine) -> Ring:
    """The ring alone must be page-locked: fewer chunks where the limit is that low, never under two."""
    if machine.pin_limit_bytes is None or machine.device == "cpu":
        return ring
    chunks = max(2, min(ring.bytes, machine.pin_limit_bytes) // ring.chunk_bytes)
    return Ring(chunks * ring.chunk_bytes, ring.chunk_bytes)
