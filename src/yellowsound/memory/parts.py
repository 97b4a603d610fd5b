"""Parts: reading whole modules through the conveyor, and building them without memory for weights.

A part is built empty (parameters on the meta device, tables and other computed buffers real, in float32 on the CPU),
then its tensors arrive from the file in the dtype that the libraries' own loaders would give them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from yellowsound.checkpoint import Checkpoint, CheckpointError, TensorEntry
from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.device import Device, Stream
from yellowsound.memory.extents import Parcel
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.reader import Reader, Report
from yellowsound.memory.visit import NAMES_OF_DTYPES, HomeKind, views_of
from yellowsound.weights.dtypes import loaded_dtype
from yellowsound.weights.names import name_in_module

BATCH_BYTES = 64 * 1024 * 1024  # tensors of a part travel in lots of about this size, through two slots
RING_BYTES = 64 * 1024 * 1024
THREADS = 4

_INSIDE_BLOCK = re.compile(r"^(?:visual|video_text|audio_text)_transformer_blocks\.\d+\.(.+)$")

DIFFUSERS_CLASSES = {
    "transformer": "Kandinsky6Transformer3DModel",
    "vae": "AutoencoderKLHunyuanVideo",
    "audio_vae": "MMAudioVAE",
    "vocoder": "MMAudioVocoder",
}
TRANSFORMERS_CLASSES = {
    "text_encoder": "Qwen2_5_VLForConditionalGeneration",
    "text_encoder_2": "CLIPTextModel",
}


def wanted_dtype(component: str, dtype: torch.dtype) -> Callable[[TensorEntry], str]:
    """The dtype each tensor of ``component`` runs in when the part is loaded in ``dtype``."""
    name = NAMES_OF_DTYPES[dtype]
    return lambda entry: loaded_dtype(component, entry.name, entry.dtype, name)


def open_reader(checkpoint: Checkpoint, component: str, report: Report) -> Reader:
    """A reader that holds every file of ``component`` to what it was when the checkpoint was opened."""
    return Reader(checkpoint.components[component].files, threads=THREADS, report=report)


def read_tensors(
    device: Device,
    reader: Reader,
    tensors: Mapping[str, TensorEntry],
    wanted: Callable[[TensorEntry], str],
    kept: dict[str, HostBlock] | None = None,
) -> dict[str, Tensor]:
    """Bring ``tensors`` into device memory of their own, by key. Raises ReadError.

    kept: host memory to keep them in: filled if it is empty, and what is in it is not read again. It is the caller's
    to free, and empty after an error.
    """
    lots = {f"lot {n}": dict(lot) for n, lot in enumerate(_lots(tensors))}
    parcels = {name: Parcel.build(name, lot, wanted, device.line_bytes) for name, lot in lots.items()}
    homes: dict[str, HomeKind] = dict.fromkeys(lots, "disk" if kept is None else "ram")
    conveyor = Conveyor(device, reader, parcels, homes, slots=2, ring_bytes=_ring_bytes(device, kept))
    found: dict[str, Tensor] = {}
    try:
        if kept:
            conveyor.adopt(kept)
            kept.clear()
        conveyor.begin_lap(list(parcels))
        for parcel in parcels.values():
            found |= _copied(device, conveyor, parcel)
        if kept is not None:
            kept.update(conveyor.hand_over())
    finally:
        conveyor.close()
    return found


def _ring_bytes(device: Device, kept: Mapping[str, HostBlock] | None) -> int:
    """No ring (one chunk) where every copy starts from a page-locked home."""
    return 0 if kept and all(device.can_copy_from(block) for block in kept.values()) else RING_BYTES


def _copied(device: Device, conveyor: Conveyor, parcel: Parcel) -> dict[str, Tensor]:
    """The next lot of the lap, out of its slot into memory of its own."""
    arrived = conveyor.acquire().tensors
    own = views_of(parcel, device.alloc(parcel.compact_bytes), parcel.compact())

    def copy() -> None:
        for name, tensor in own.items():
            tensor.copy_(arrived[name])

    device.run(copy, Stream.COMPUTE)
    conveyor.release()
    return own


def _lots(tensors: Mapping[str, TensorEntry]) -> Iterator[list[tuple[str, TensorEntry]]]:
    lot: list[tuple[str, TensorEntry]] = []
    size = 0
    for item in sorted(tensors.items(), key=lambda item: (str(item[1].file), item[1].offset_bytes)):
        if lot and size + item[1].size_bytes > BATCH_BYTES:
            yield lot
            lot, size = [], 0
        lot.append(item)
        size += item[1].size_bytes
    if lot:
        yield lot


def inside_block(entry: TensorEntry) -> str:
    """A stored tensor's name inside its block; other names are whole."""
    match = _INSIDE_BLOCK.match(entry.name)
    return match[1] if match else entry.name


def by_module_name(component: str, entries: Iterable[TensorEntry]) -> dict[str, TensorEntry]:
    """Stored tensors by the name they have in the module; what loading leaves out is left out."""
    named = ((name_in_module(component, entry.name), entry) for entry in entries)
    return {name: entry for name, entry in named if name is not None}


@contextmanager
def empty_weights() -> Iterator[None]:
    """Parameters are made on the meta device; buffers are computed as ever (RoPE tables: float32, on the CPU)."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        yield


def build_empty(checkpoint: Checkpoint, component: str, changes: Mapping[str, Any] | None = None) -> nn.Module:
    """The module of ``component`` as its library builds it from the folder's config, without weights."""
    folder = str(checkpoint.folder / component)
    if component in DIFFUSERS_CLASSES:
        import diffusers

        cls = getattr(diffusers, DIFFUSERS_CLASSES[component])
        config = {**cls.load_config(folder, local_files_only=True), **(changes or {})}
        with empty_weights():
            diffused: nn.Module = cls.from_config(config)
        return diffused.eval()
    import transformers

    cls = getattr(transformers, TRANSFORMERS_CLASSES[component])
    with empty_weights():
        module: Any = cls._from_config(cls.config_class.from_pretrained(folder, local_files_only=True))
    stored = by_module_name(component, checkpoint.components[component].tensors.values())
    if "lm_head.weight" in module.all_tied_weights_keys.keys() - stored.keys():
        module.lm_head = TiedHead(module.get_input_embeddings())
    built: nn.Module = module.eval()
    return built


class TiedHead(nn.Module):
    """The language head of a tied model that stores none: the embedding's weight, wherever that is just now.

    A head that is stored is used as it is, as transformers does whatever the config says.
    """

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.linear(hidden_states, self.embedding.weight)  # type: ignore[arg-type]


def put_tensors(module: nn.Module, tensors: Mapping[str, Tensor], device: torch.device, *, where: str) -> None:
    """Give ``module`` its tensors and move computed buffers beside them, uncast.

    Raises CheckpointError naming what is missing or left over.
    """
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    unknown = sorted(set(tensors) - set(state))
    missing = sorted(name for name, value in state.items() if value.is_meta and name not in tensors)
    if unknown or missing:
        raise CheckpointError(
            f"{where}: tensors do not fit the model: {_some('unknown', unknown)}{_some('missing', missing)}"
        )
    for name, value in state.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        if name in tensors and leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(tensors[name], requires_grad=False)
        else:
            owner._buffers[leaf] = tensors[name] if name in tensors else value.to(device)


def take_tensors(module: nn.Module, names: Iterable[str]) -> None:
    """Take these tensors out of ``module`` again; what stands for them has a shape and no memory."""
    for name in names:
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        tensor = owner._parameters.get(leaf)
        if tensor is not None:
            owner._parameters[leaf] = nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=False)
        elif (buffer := owner._buffers.get(leaf)) is not None:
            owner._buffers[leaf] = torch.empty_like(buffer, device="meta")


def _some(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{word} {', '.join(names[:3])}{more}; "
