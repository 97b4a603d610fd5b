"""Claims: the budgets of one worker, and what its stages cannot do without before any weight gets a home."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from yellowsound.memory.budget import GIB, reserve_bytes
from yellowsound.memory.geometry import Decode, Geometry, Offload, StageName
from yellowsound.memory.machine import Machine
from yellowsound.memory.peaks import Peaks, PeakStage
from yellowsound.memory.units import ITEM_BYTES, PAGE_BYTES, Home, ModelDescription, Unit

CONTEXT_BYTES = {"cuda": int(0.6 * GIB), "cpu": 0}  # context and libraries on the card
SLACK_BYTES = {"cuda": GIB, "cpu": 0}  # fragmentation and the desktop
PROCESS_BYTES = {"cuda": int(1.5 * GIB), "cpu": int(0.7 * GIB)}  # interpreter, torch and driver in host memory
ENCODER_BYTES = GIB // 2  # the video encoder's own
CHUNK_BYTES, RING_CHUNKS = 64 << 20, 16
TEXT_SLOTS = 2
# Up to here hoisted results live on the device; larger ones in host memory, from where a step's rows come one step
# ahead (rows.py). Neither costs time that could be measured (docs/measurements.md).
RESULTS_ON_DEVICE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Caps:
    """What the user allows yellowsound to take; None where nothing was said."""

    vram_bytes: int | None = None
    ram_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is asked: this clip of this model on this machine, within caps, with the user's word for offloading.

    lora_bytes: what merging LoRA files holds on the device at all times.
    """

    machine: Machine
    model: ModelDescription
    geometry: Geometry
    caps: Caps
    offload: Offload
    peaks: Peaks
    lora_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """Pinned staging memory between the reader and the copy stream: chunks of chunk_bytes."""

    bytes: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Claims:
    """Bytes that are taken before any home."""

    resident: int  # always on the device: the transformer outside its blocks, results that live there, LoRA files
    stages: Mapping[StageName, int]  # what each stage needs on the device besides
    results: int  # hoisted results of all steps and branches
    results_home: Home
    upload: int  # of those, what one step brings to the device; 0 where they live there
    host: int  # process, encoder, finished frames, the text encoder's ring, results that live in host memory
    loras: int = 0  # of what is resident: factors of LoRA files and the room to merge them

    @property
    def largest(self) -> tuple[StageName, int]:
        """The stage that needs most on the device, and how much."""
        return max(self.stages.items(), key=lambda item: item[1])


def device_budget(machine: Machine, caps: Caps) -> int:
    """Bytes of the card that weights and activations may take now: free or capped, less context and slack.

    Without a card host memory is the device's, and a cap is for weights alone (homes and slots): see ``lay_out``.
    """
    if machine.device == "cpu":
        return machine.vram_free_bytes
    limit = machine.vram_free_bytes if caps.vram_bytes is None else min(machine.vram_free_bytes, caps.vram_bytes)
    return limit - CONTEXT_BYTES[machine.device] - SLACK_BYTES[machine.device]


def device_capacity(machine: Machine, caps: Caps) -> int:
    """The same for an otherwise empty card: for choices that must not depend on the moment."""
    if machine.device == "cpu":
        total = machine.ram_total_bytes
        budget = total - reserve_bytes(total, total)
        return budget if caps.ram_bytes is None else min(budget, caps.ram_bytes)
    limit = machine.vram_total_bytes if caps.vram_bytes is None else min(machine.vram_total_bytes, caps.vram_bytes)
    return limit - CONTEXT_BYTES[machine.device] - SLACK_BYTES[machine.device]


def host_budget(machine: Machine, caps: Caps) -> int:
    """Bytes of host memory that may be taken: available less the reserve, or the cap if that is less."""
    available = machine.ram_available_bytes
    budget = available - reserve_bytes(machine.ram_total_bytes, available)
    return budget if caps.ram_bytes is None else min(budget, caps.ram_bytes)


def claims_of(asked: Question, decode: Decode) -> Claims:
    """What every stage needs on the device and in host memory, homes left out."""
    model, geometry, device, lora_bytes = asked.model, asked.geometry, asked.machine.device, asked.lora_bytes
    results, upload = hoisted_results(model, geometry)
    home = Home.VRAM if device == "cuda" and results <= RESULTS_ON_DEVICE_BYTES else Home.RAM
    upload = 0 if home is Home.VRAM else upload

    def peak(stage: PeakStage) -> int:
        return asked.peaks.find(stage, model, geometry)[0]

    video = device_bytes(model.of("vae"))
    layers = largest(model.of("text_encoder", "layer"), "slot_bytes")
    outside = (*model.of("text_encoder", "rest"), *model.of("text_encoder_2"))
    arriving = 2 * max((tensor.size_bytes for unit in outside for tensor in unit.tensors), default=0)
    stages: dict[StageName, int] = {
        "text": device_bytes(outside) + max(arriving, TEXT_SLOTS * layers + peak("text")),
        "denoise": peak("denoise") + 2 * upload,
        "decode": video + peak("decode_whole" if decode == "whole" else "decode_tiled"),
        "audio": device_bytes((*model.of("audio_vae"), *model.of("vocoder"))) + peak("audio"),
    }
    if geometry.tail:
        stages["image"] = video + peak("image")
    frames = geometry.frames * geometry.height * geometry.width * 3
    resident = device_bytes(model.of("transformer", "rest")) + (results if home is Home.VRAM else 0) + lora_bytes
    second_ring = ring_size(model).bytes if layers else 0  # the text encoder's own conveyor stays alive
    host = PROCESS_BYTES[device] + ENCODER_BYTES + frames + second_ring + (0 if home is Home.VRAM else results)
    return Claims(resident, stages, results, home, upload, host, lora_bytes)


def hoisted_results(model: ModelDescription, geometry: Geometry) -> tuple[int, int]:
    """Bytes of all hoisted results, and of those that one step needs: 12 (D + A) a block, both text stacks' outputs."""
    if not model.of("transformer", "modulations"):
        return 0, 0
    width = model.model_dim + model.audio_dim
    numbers = 12 * width * len(model.blocks) + geometry.text_tokens * width
    step = numbers * ITEM_BYTES[geometry.dtype] * geometry.branches
    return step * geometry.steps, step


def choose_decode(asked: Question) -> Decode:
    """``whole`` where the card holds it besides all that would live there, else ``tiled``.

    Both are diffusers' own, with different pixels: so this looks at the card's size (or the cap) and at shipped or
    computed peaks only, never at what happens to be free or what was measured here.
    """
    machine, model = asked.machine, asked.model
    claims = claims_of(replace(asked, peaks=asked.peaks.without_records()), "whole")
    lived = {"block": (), "none": model.units}.get(asked.offload, model.blocks)
    blocks = device_bytes(lived)
    slots = 2 * largest(model.of("transformer"), "slot_bytes")
    capacity = device_capacity(machine, asked.caps)
    if machine.device == "cpu":  # one memory: what the host's side takes is gone
        capacity -= claims.host + claims.results + ring_size(model).bytes
    return "whole" if claims.resident + claims.largest[1] + blocks + slots <= capacity else "tiled"


def ring_size(model: ModelDescription) -> Ring:
    """16 chunks of 64 MiB; smaller chunks for models whose largest unit is smaller."""
    unit = largest(model.units, "stored_bytes")
    chunk = min(CHUNK_BYTES, -(-unit // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES)
    return Ring(chunk * RING_CHUNKS, chunk)


def device_bytes(units: Iterable[Unit]) -> int:
    return sum(unit.device_bytes for unit in units)


def largest(units: Iterable[Unit], size: str) -> int:
    """The largest ``size`` (a field of Unit) among some units, 0 if there are none."""
    return max((int(getattr(unit, size)) for unit in units), default=0)
