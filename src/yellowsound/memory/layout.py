"""Layout: how device and host memory are divided, and the home every unit gets. Pure arithmetic.

Order of claims: what a stage cannot do without, then the blocks of the denoising loop (VRAM first, host memory next,
the rest on disk), then what is needed once in a clip. A later claim never takes from an earlier one, and once-a-clip
units get a home only when no block is on disk: that keeps every time monotone in every budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from yellowsound.memory.budget import GIB, format_bytes
from yellowsound.memory.claims import (
    TEXT_SLOTS,
    Caps,
    Claims,
    Question,
    Ring,
    choose_decode,
    claims_of,
    device_budget,
    device_bytes,
    host_budget,
    largest,
    ring_size,
)
from yellowsound.memory.geometry import Decode, Offload
from yellowsound.memory.machine import Machine
from yellowsound.memory.placement import Counts, arrange, count
from yellowsound.memory.refusal import refuse_cap, refuse_device, refuse_host
from yellowsound.memory.units import Home, ModelDescription, Unit
from yellowsound.memory.work import PRO, widths

LARGE_CARD_BYTES = 28 * GIB
SMALLER = "ask for fewer frames or a smaller size"


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


def lay_out(asked: Question, slots: int = 2) -> Layout:
    """Divide the memory of a machine, with ``slots`` to stream through where they fit, never under two.

    Raises PlanError where even the smallest division does not fit.
    """
    machine, model, geometry, caps = asked.machine, asked.model, asked.geometry, asked.caps
    decode = choose_decode(asked)
    claims = claims_of(asked, decode)
    ring = ring_size(model)
    host = host_budget(machine, caps)
    host_room = host - claims.host - ring.bytes
    budget = device_budget(machine, caps)
    if machine.device == "cpu":  # one memory serves as both
        budget = min(budget, host_room)
        if caps.vram_bytes is not None:
            budget = min(budget, caps.vram_bytes + claims.largest[1])
    waiting = clip_units(model, expand=False)  # head and eyes come with each expansion and leave with it
    device = _divide_device(model, budget, claims, asked.offload, waiting, slots)
    if isinstance(device, Lack):
        tiled = claims_of(asked, "tiled") if decode == "whole" else None
        _refuse_device(machine, model, caps, claims, device, budget, tiled)
    if machine.device == "cpu":
        host_room -= budget - device.left
    if host_room < 0:
        taken = f"the process with its ring and hoisted results ({format_bytes(claims.host + ring.bytes)})"
        clip = geometry.frames * geometry.height * geometry.width * 3 + _results_in_ram(claims)
        refuse_host(machine, caps, taken, -host_room, *([SMALLER] if clip > -host_room else []))
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


def slots_worth_trying(machine: Machine, offload: Offload) -> tuple[int, ...]:
    """Numbers of slots, the least first: a third is cheap against what a large card holds."""
    return (2, 3) if machine.vram_total_bytes >= LARGE_CARD_BYTES and offload != "block" else (2,)


def clip_units(model: ModelDescription, expand: bool) -> tuple[Unit, ...]:
    """What is needed once in a clip, most useful home first.

    Lap one waits for text blocks and modulations; the decoders are used by every clip; the text encoder only by a new
    prompt; its head and its eyes only by prompt expansion, from disk, otherwise they are not read at all.
    """
    parts = [unit for name in ("vae", "audio_vae", "vocoder", "text_encoder_2") for unit in model.of(name)]
    extra = model.of("text_encoder", "head", "vision") if expand else ()
    lap_one = tuple(unit for unit in model.of("transformer", "text_block", "modulations") if unit.needed == "clip")
    return (*lap_one, *parts, *model.of("text_encoder", "rest", "layer"), *extra)


@dataclass(frozen=True, slots=True)
class Lack:
    """What of the device's share does not fit: in words with sizes, the bytes it takes, and a remedy of its own."""

    what: str
    bytes: int
    remedy: str = ""


def _divide_device(
    model: ModelDescription, budget: int, claims: Claims, offload: Offload, waiting: Sequence[Unit], wanted: int
) -> OnDevice | Lack:
    """Slots and homes on the device. All blocks if they fit beside slots for lap one, else as many as fit."""
    room = budget - claims.resident - claims.largest[1]
    streamed = [unit for unit in model.of("transformer") if unit.kind != "rest"]
    lap_slot = largest([unit for unit in streamed if unit.kind != "block"], "slot_bytes")
    slot, block = largest(streamed, "slot_bytes"), largest(model.blocks, "device_bytes")
    blocks = len(model.blocks) * block
    if offload == "none":
        every = blocks + device_bytes(waiting)
        if every > room:
            return Lack(f"every part ({format_bytes(every)}, --offload none)", every, "use --offload auto")
        return OnDevice(0, 0, len(model.blocks), tuple(waiting), room - every)
    fitting = [slots for slots in (wanted, 2) if offload != "block" and blocks + slots * lap_slot <= room]
    if fitting:
        left = room - blocks - fitting[0] * lap_slot
        return _with_clip_units(OnDevice(fitting[0], lap_slot, len(model.blocks), (), left), waiting, offload)
    if offload == "module":
        both = blocks + 2 * lap_slot
        what = f"all blocks of the transformer and two slots ({format_bytes(both)}, --offload module)"
        return Lack(what, both, "use --offload auto, which streams what does not fit")
    slots = wanted if room >= wanted * slot else 2
    if room < slots * slot:
        return Lack(f"{slots} slots of {format_bytes(slot)}", slots * slot)
    homes = 0 if offload == "block" else count(len(model.blocks), block, 1, room - slots * slot, 0).vram
    return OnDevice(slots, slot, homes, (), room - slots * slot - homes * block)


def _refuse_device(
    machine: Machine,
    model: ModelDescription,
    caps: Caps,
    claims: Claims,
    lack: Lack,
    budget: int,
    tiled: Claims | None,
) -> NoReturn:
    """Say what does not fit with all that takes part in the sum. tiled: the claims of a decode in tiles, if not so."""
    stage, needed = claims.largest
    lacking = claims.resident + needed + lack.bytes - budget
    always = f"{lack.what}, {format_bytes(claims.resident)} that always stay"
    what = f"the {stage} stage ({format_bytes(needed)}) beside {always}"
    helps = tiled is not None and tiled.resident + tiled.largest[1] + lack.bytes <= budget
    remedies = [lack.remedy] if lack.remedy else []
    shorter = [] if stage == "text" else [SMALLER]
    lite = ["use a lite checkpoint"] if widths(model) == PRO else []
    if machine.device == "cuda":
        remedies += ["cap --vram to decode in tiles"] if helps else []
        refuse_device(machine, caps, what, lacking, *remedies, *shorter, *lite)
    if caps.vram_bytes is not None and budget == caps.vram_bytes + needed:
        refuse_cap(caps.vram_bytes, always, lacking, *remedies, *lite)
    remedies += ["cap --ram to decode in tiles"] if helps else []
    what = f"{what}, {format_bytes(claims.host + ring_size(model).bytes)} of the process"
    refuse_host(machine, caps, what, lacking, *remedies, *shorter, *lite)


def _with_clip_units(device: OnDevice, waiting: Sequence[Unit], offload: Offload) -> OnDevice:
    """The blocks are all in; what is left holds once-a-clip units, in their order."""
    if offload == "module":
        return device
    taken, left = prefix(waiting, device.left, "device_bytes")
    lap_one = {unit for unit in waiting if unit.component == "transformer"}
    if lap_one <= set(taken):  # nothing of the transformer moves: its slots are room again
        taken, left = prefix(waiting, device.left + device.slots * device.slot_bytes, "device_bytes")
        device = replace(device, slots=0, slot_bytes=0)
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
