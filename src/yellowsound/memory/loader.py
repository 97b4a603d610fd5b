"""Loading models that stream: the transformer and the Qwen text encoder, with homes for their units from a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from yellowsound.checkpoint import Checkpoint, TensorEntry
from yellowsound.memory.arrival import Merger
from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.course import Course, Modulations
from yellowsound.memory.device import Device, open_device
from yellowsound.memory.driver import Driver
from yellowsound.memory.extents import Parcel
from yellowsound.memory.hoist import TOWERS, Store
from yellowsound.memory.leaving import closing_with
from yellowsound.memory.lora import Lora, LoraMerger
from yellowsound.memory.parts import build_empty, inside_block, open_reader, put_tensors, read_tensors, wanted_dtype
from yellowsound.memory.reader import Reader, Report
from yellowsound.memory.shells import Shell, take_modulations
from yellowsound.memory.stack import install
from yellowsound.memory.units import Home, Unit, units_of
from yellowsound.memory.visit import NAMES_OF_DTYPES, HomeKind
from yellowsound.memory.watch import HostWatch

_DTYPE_WORDS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# A fused block's modulations, and the time embedding each takes (0: the video's, 1: the audio's) under fix_modulation.
_MODULATIONS = {
    "video_dec_block.visual_modulation": 0,
    "audio_dec_block.visual_modulation": 1,
    "va_modulation": 0,
    "av_modulation": 1,
}


class Residency(Protocol):
    """What loading needs of a plan."""

    @property
    def homes(self) -> Mapping[str, Home]: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def ring_bytes(self) -> int: ...
    @property
    def chunk_bytes(self) -> int: ...
    @property
    def results_home(self) -> Home: ...


@dataclass(frozen=True, slots=True)
class Sizes:
    """Slots and ring of one conveyor."""

    slots: int
    slot_bytes: int
    ring_bytes: int
    chunk_bytes: int


def load_streamed_transformer(
    checkpoint: Checkpoint,
    plan: Residency,
    device: Device | torch.device | str,
    dtype: torch.dtype,
    *,
    loras: Sequence[Lora] = (),
    report: Report = lambda message: None,
) -> Any:
    """diffusers' transformer, its blocks on the conveyor: call it as the stock one, or through ``stack.predict``.

    Only the tensors outside the blocks are read now. ``report`` is told what fell back. Raises CheckpointError,
    ReadError, LoraError. ``stack.close_streamed(model)`` gives everything back.
    """
    where = open_device(device, report) if isinstance(device, str | torch.device) else device
    units = [
        unit
        for unit in units_of(checkpoint, dtype_word(dtype), hoisted=True).values()
        if unit.component == "transformer"
    ]
    config = checkpoint.components["transformer"].config
    model = build_empty(checkpoint, "transformer", {"num_visual_blocks": 1, "num_text_blocks": 1})
    _restore_counts(model, config)
    shells = _Shells(model, bool(config.get("fix_modulation")), where.torch_device)
    merger = LoraMerger(loras, units, checkpoint, where.torch_device) if loras else None
    reader = open_reader(checkpoint, "transformer", report)
    try:
        _load_rest(model, units, reader, where, dtype, merger, checkpoint)
        moving = [unit for unit in units if unit.kind != "rest"]
        sizes = Sizes(plan.slots, plan.slot_bytes, plan.ring_bytes, plan.chunk_bytes)
        watch = HostWatch(max(unit.ram_bytes for unit in moving))
        conveyor = conveyor_of(moving, plan.homes, sizes, where, reader, dtype, merger, has_room=watch.has_room)
    except BaseException:
        reader.close()
        raise
    store = Store(where, on_device=plan.results_home is Home.VRAM)
    driver = Driver(conveyor, where, _course(moving), shells.block, shells.texts, shells.modulations, store, dtype)
    driver.seams.watch = watch
    install(model, driver)
    closing_with(model, driver, reader, where)
    if not plan.slots:
        conveyor.fill([unit.name for unit in moving])
        conveyor.drop_slots()
    return model


class _Shells:
    """The shells of a transformer built with one block of each kind; the blocks leave the model."""

    def __init__(self, model: Any, fix_modulation: bool, device: torch.device) -> None:
        block = model.visual_transformer_blocks[0]
        names = tuple(_MODULATIONS)
        taken, lookups = take_modulations(block, names, device)
        towers = tuple(
            tower if fix_modulation or "dec_block" in name else 1 - tower for name, tower in _MODULATIONS.items()
        )
        widths = tuple(int(taken.get_submodule(f"{name}.out_layer").out_features) for name in names)  # type: ignore[arg-type]
        self.block = Shell(block)
        self.modulations = Modulations(Shell(taken), names, tuple(lookups), towers, widths)
        self.texts = {tower: Shell(getattr(model, f"{tower}_text_transformer_blocks")[0]) for tower in TOWERS}
        for name in ("visual", *(f"{tower}_text" for tower in TOWERS)):
            setattr(model, f"{name}_transformer_blocks", nn.ModuleList())


def _restore_counts(model: Any, config: Mapping[str, Any]) -> None:
    """The config says the real numbers of blocks, though one of each kind was built."""
    model.register_to_config(**{key: config[key] for key in ("num_visual_blocks", "num_text_blocks")})


def _course(units: Sequence[Unit]) -> Course:
    def names(kind: str, part: str = "") -> tuple[str, ...]:
        chosen = [unit for unit in units if unit.kind == kind and part in unit.name]
        return tuple(unit.name for unit in sorted(chosen, key=lambda unit: unit.index))

    texts = {tower: names("text_block", f"{tower}_text") for tower in TOWERS}
    return Course(names("block"), names("modulations"), texts)


def _load_rest(
    model: nn.Module,
    units: Sequence[Unit],
    reader: Reader,
    device: Device,
    dtype: torch.dtype,
    merger: Merger | None,
    checkpoint: Checkpoint,
) -> None:
    """The tensors outside the blocks: resident, with LoRAs merged."""
    for unit in units:
        if unit.kind == "rest":
            entries = {entry.name: entry for entry in unit.tensors}
            tensors = read_tensors(device, reader, entries, wanted_dtype("transformer", dtype))
            if merger is not None and merger.names(unit.name):
                merger.merge(unit.name, tensors)
            put_tensors(model, tensors, device.torch_device, where=str(checkpoint.folder / "transformer"))


def conveyor_of(
    units: Sequence[Unit],
    homes: Mapping[str, Home],
    sizes: Sizes,
    device: Device,
    reader: Reader,
    dtype: torch.dtype,
    merger: Merger | None = None,
    key_of: Callable[[TensorEntry], str] | None = None,
    has_room: Callable[[int], bool] = lambda size_bytes: True,
) -> Conveyor:
    """A conveyor for ``units`` of one component; ``key_of`` names a tensor inside its unit."""
    wanted = wanted_dtype(units[0].component, dtype)
    key = key_of or inside_block
    parcels = {
        unit.name: Parcel.build(unit.name, {key(entry): entry for entry in unit.tensors}, wanted, device.line_bytes)
        for unit in units
    }
    kinds: dict[str, HomeKind] = {unit.name: homes[unit.name].value for unit in units}
    conveyor = Conveyor(
        device,
        reader,
        parcels,
        kinds,
        slots=sizes.slots,
        slot_bytes=sizes.slot_bytes,
        ring_bytes=sizes.ring_bytes,
        chunk_bytes=sizes.chunk_bytes,
        merger=merger,
        has_room=has_room,
        courier=device.torch_device.type == "cuda",
    )
    reader.on_done = conveyor.notify
    return conveyor


def dtype_word(dtype: torch.dtype) -> Any:
    """The plan's word for a torch dtype."""
    return _DTYPE_WORDS[NAMES_OF_DTYPES[dtype]]
