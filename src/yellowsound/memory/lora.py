"""LoRA merging: every file's deltas, held on the device and added to a unit's weights as it enters its home.

The arithmetic is peft's own merge, so the result equals diffusers' ``load_lora_adapter`` + ``fuse_lora``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from yellowsound.checkpoint import Checkpoint, TensorEntry
from yellowsound.memory.lora_config import LoraError
from yellowsound.memory.lora_file import Delta, Lora, read_lora
from yellowsound.memory.parts import inside_block, wanted_dtype
from yellowsound.memory.units import ALIGNMENT_BYTES, ITEM_BYTES, Unit, round_up

__all__ = ["Delta", "Lora", "LoraError", "LoraMerger", "lora_bytes", "read_lora"]


def lora_bytes(loras: Sequence[Lora], checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that merging holds on the device: the factors of all files, and the room in which one weight is merged.

    Reads every file, so what cannot be merged is refused here. Raises LoraError.
    """
    entries = checkpoint.components["transformer"].tensors
    wanted = wanted_dtype("transformer", dtype)
    factors = room = 0
    for lora in loras:
        for entry, delta in _fitting(lora, entries, checkpoint.name):
            factors += sum(round_up(factor.nbytes, ALIGNMENT_BYTES) for factor in (delta.down, delta.up))
            room = max(room, _merge_bytes(delta, ITEM_BYTES[wanted(entry)], device))
    return factors + room


def _merge_bytes(delta: Delta, item_bytes: int, device: torch.device) -> int:
    """Factors and product in the weight's dtype; a processor multiplies short dtypes in float32, held besides."""
    numbers = delta.up.numel() + delta.down.numel() + delta.up.shape[0] * delta.down.shape[1]
    return numbers * (item_bytes + 4 if device.type == "cpu" and item_bytes == 2 else item_bytes)


def _fitting(lora: Lora, entries: Mapping[str, TensorEntry], model: str) -> Iterator[tuple[TensorEntry, Delta]]:
    """The weights that a file changes, each with its delta, once all of them are known to fit. Raises LoraError."""
    found = read_lora(lora)
    unmatched = sorted(module for module in found if f"{module}.weight" not in entries)
    if unmatched:
        more = f" and {len(unmatched) - 5} more" if len(unmatched) > 5 else ""
        raise LoraError(f"{lora.file}: made for another model: {model} has no {', '.join(unmatched[:5])}{more}")
    for module, delta in found.items():
        entry = entries[f"{module}.weight"]
        if entry.shape != (delta.up.shape[0], delta.down.shape[1]):
            raise LoraError(
                f"{lora.file}: {module} is {delta.up.shape[0]}x{delta.down.shape[1]}, "
                f"{model} has {'x'.join(map(str, entry.shape))}"
            )
        yield entry, delta


class LoraMerger:
    """All LoRA files of a run, ready to merge into units of one checkpoint's transformer."""

    def __init__(
        self, loras: Sequence[Lora], units: Sequence[Unit], checkpoint: Checkpoint, device: torch.device
    ) -> None:
        entries = {entry.name: entry for unit in units for entry in unit.tensors}
        unit_of = {entry.name: unit.name for unit in units for entry in unit.tensors}
        self._deltas: dict[str, dict[str, list[Delta]]] = {}
        for lora in loras:
            for entry, delta in _fitting(lora, entries, checkpoint.name):
                placed = Delta(delta.down.to(device), delta.up.to(device), delta.scale)
                in_unit = self._deltas.setdefault(unit_of[entry.name], {})
                in_unit.setdefault(inside_block(entry), []).append(placed)

    def names(self, unit: str) -> frozenset[str]:
        """The tensors of a unit that are changed."""
        return frozenset(self._deltas.get(unit, ()))

    def merge(self, unit: str, tensors: Mapping[str, Tensor]) -> None:
        """Add every file's delta, in the order the files were given."""
        with torch.no_grad():
            for key, deltas in self._deltas.get(unit, {}).items():
                for delta in deltas:
                    delta.add_to(tensors[key])
