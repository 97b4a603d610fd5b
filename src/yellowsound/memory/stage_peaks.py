"""Stage peaks: what every stage of a clip holds on the device and in host memory, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yellowsound.memory import timing, work
from yellowsound.memory.claims import CONTEXT_BYTES, device_bytes
from yellowsound.memory.expansion import USUAL_TOKENS, Expansion, homes_bytes
from yellowsound.memory.geometry import Geometry, StageName
from yellowsound.memory.layout import Layout
from yellowsound.memory.machine import Machine
from yellowsound.memory.placement import DERATING
from yellowsound.memory.units import Home, ModelDescription, Unit

Seconds = tuple[float, float]  # of the first clip, of a warm one
# Parts that a stage's claim counts, so that they are not counted twice where they live on the device anyway.
STAGE_PARTS: dict[StageName, tuple[str, ...]] = {
    "text": ("text_encoder", "text_encoder_2"),
    "image": ("vae",),
    "decode": ("vae",),
    "audio": ("audio_vae", "vocoder"),
}


@dataclass(frozen=True, slots=True)
class StagePeak:
    """The most that a stage holds on the device and in host memory, homes included, and the seconds it should take.

    seconds: of a warm clip with a new prompt; first_seconds: of the first clip, when all comes from disk.
    """

    stage: StageName
    vram_bytes: int
    ram_bytes: int
    seconds: float
    first_seconds: float
    note: str = ""


def stage_peaks(
    machine: Machine,
    model: ModelDescription,
    geometry: Geometry,
    layout: Layout,
    laps: timing.Laps,
    expansion: Expansion | None,
) -> tuple[StagePeak, ...]:
    """Every stage in the order of the road."""
    held = _Held.of(machine, model, layout)
    seconds = _seconds(machine, model, geometry, layout, laps)
    notes: dict[StageName, str] = {
        "text": "0 s for a prompt seen before",
        "denoise": f"{geometry.steps} steps, waiting for {laps.steady.bound}",
        "decode": layout.decode,
    }
    rows = [] if expansion is None else [_expansion_stage(machine, model, layout, expansion)]
    for name, (first, warm) in seconds.items():
        there = [u for u in held.lived if u.component in STAGE_PARTS.get(name, ()) and u.kind in ("rest", "whole")]
        vram = held.device + layout.claims.stages.get(name, 0) - device_bytes(there)
        rows.append(StagePeak(name, vram, held.host, warm, first, notes.get(name, "")))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Held:
    """What is held in every stage: homes, slots, residents and context; homes, ring, results and the process.

    lived: units whose home is the device, counted in ``device``; the transformer's resident tensors are a claim.
    """

    device: int
    host: int
    lived: tuple[Unit, ...]

    @classmethod
    def of(cls, machine: Machine, model: ModelDescription, layout: Layout) -> _Held:
        claimed = set(model.of("transformer", "rest"))
        lived = tuple(u for u in model.units if layout.homes[u.name] is Home.VRAM and u not in claimed)
        slots = layout.device.slots * layout.device.slot_bytes
        device = CONTEXT_BYTES[machine.device] + layout.claims.resident + slots + device_bytes(lived)
        in_ram = sum(u.ram_bytes for u in model.units if layout.homes[u.name] is Home.RAM)
        return cls(device, layout.ring.bytes + layout.claims.host + in_ram, lived)


def _seconds(
    machine: Machine, model: ModelDescription, geometry: Geometry, layout: Layout, laps: timing.Laps
) -> dict[StageName, Seconds]:
    rates = machine.rates

    def both(units: Sequence[Unit], compute: float) -> Seconds:
        seconds = timing.parts_seconds(machine, layout, units, compute)
        return seconds, seconds

    text_first, text_warm = (timing.text_seconds(machine, model, geometry, layout, cold) for cold in (True, False))
    video, sound = model.of("vae"), (*model.of("audio_vae"), *model.of("vocoder"))
    muxing = work.mux_seconds(geometry)
    seconds: dict[StageName, Seconds] = {"text": (text_first, text_warm)}
    if geometry.tail:
        seconds["image"] = both(video, work.decode_seconds(model, geometry.still, False, rates))
    seconds["denoise"] = laps.denoise_seconds(geometry.steps, True), laps.denoise_seconds(geometry.steps, False)
    seconds["decode"] = both(video, work.decode_seconds(model, geometry, layout.decode == "tiled", rates))
    seconds["audio"] = both(sound, work.sound_seconds(model, geometry, rates))
    seconds["mux"] = muxing, muxing
    return seconds


def _expansion_stage(machine: Machine, model: ModelDescription, layout: Layout, expansion: Expansion) -> StagePeak:
    """The layers arrive once, then every token passes them. Homes stay where they fit beside them."""
    arrival = timing.stored_bytes(model.of("text_encoder")) / machine.disk_bytes_per_second / DERATING
    seconds = arrival + USUAL_TOKENS * expansion.seconds_per_token
    on_device, in_host = homes_bytes(model, layout)
    vram = CONTEXT_BYTES[machine.device] + expansion.vram_bytes + (0 if expansion.empties_vram else on_device)
    host = layout.claims.host + layout.ring.bytes + expansion.ram_bytes + (0 if expansion.empties_ram else in_host)
    note = f"{USUAL_TOKENS} tokens of {expansion.seconds_per_token:.3f} s"
    return StagePeak("expand", vram, host, seconds, seconds, note)
