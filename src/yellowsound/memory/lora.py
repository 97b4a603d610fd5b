"""LoRA files: parsed by their diffusers/peft names, merged into a unit's weights on the device as it enters its home.

The arithmetic is peft's own merge, so the result equals diffusers' ``load_lora_adapter`` + ``fuse_lora``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.parts import inside_block
from yellowsound.memory.units import Unit

_PREFIXES = ("transformer.", "diffusion_model.", "base_model.model.", "")
_METADATA_KEY = "lora_adapter_metadata"


class LoraError(ValueError):
    """A LoRA file that cannot be used: one line naming the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA file and the weight it is merged with."""

    file: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Lora:
        """``FILE`` or ``FILE:0.8``. Raises LoraError."""
        name, colon, number = text.rpartition(":")
        try:
            scale = float(number) if colon else 1.0
        except ValueError:
            name, scale = text, 1.0
        file = Path(name if colon and name else text)
        if not file.is_file():
            raise LoraError(f"{file}: no such LoRA file; give FILE or FILE:WEIGHT, for example style.safetensors:0.8")
        return cls(file, scale)


@dataclass(frozen=True, slots=True)
class Delta:
    """What is added to one weight: ``scale * up @ down``; down (r, in), up (out, r)."""

    down: Tensor
    up: Tensor
    scale: float

    def add_to(self, weight: Tensor) -> None:
        """Merge in place, in the arithmetic of peft's ``merge`` on the weight's device and dtype."""
        down, up = self.down.to(weight.dtype), self.up.to(weight.dtype)
        if weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16):
            delta = ((up.float() @ down.float()) * self.scale).to(weight.dtype)
        else:
            delta = (up @ down) * self.scale
        weight += delta


def read_lora(lora: Lora) -> dict[str, Delta]:
    """The deltas of a file by the name of the module they belong to. Raises LoraError."""
    try:
        with safe_open(lora.file, framework="pt") as file:
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
            metadata = json.loads((file.metadata() or {}).get(_METADATA_KEY, "{}"))
    except Exception as error:
        raise LoraError(f"{lora.file}: is no safetensors file: {error}") from error
    prefix = _common_prefix(tensors)
    plain = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    alphas = {k.removeprefix(prefix): v for k, v in metadata.items()}
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in plain.items():
        module, part = _split(name, lora.file)
        modules.setdefault(module, {})[part] = tensor
    return {module: _delta(module, parts, alphas, lora) for module, parts in modules.items()}


def _common_prefix(names: Mapping[str, Tensor]) -> str:
    return next(prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in names))


def _split(name: str, file: Path) -> tuple[str, str]:
    """Module and role (``down``, ``up``, ``alpha``) of a LoRA tensor's name."""
    endings = {
        ".lora_A.weight": "down", ".lora_B.weight": "up", ".lora_down.weight": "down", ".lora_up.weight": "up",
        ".lora_A.default.weight": "down", ".lora_B.default.weight": "up", ".alpha": "alpha",
    }  # fmt: skip
    for ending, role in endings.items():
        if name.endswith(ending):
            return name.removesuffix(ending), role
    raise LoraError(f"{file}: tensor {name} is no LoRA pair (expected names ending in lora_A.weight, lora_B.weight)")


def _delta(module: str, parts: Mapping[str, Tensor], metadata: Mapping[str, object], lora: Lora) -> Delta:
    if not {"down", "up"} <= set(parts):
        raise LoraError(f"{lora.file}: {module} has {' and '.join(sorted(parts))} only; lora_A and lora_B are needed")
    rank = parts["down"].shape[0]
    alpha = float(parts["alpha"]) if "alpha" in parts else _metadata_alpha(module, metadata, rank)
    return Delta(parts["down"], parts["up"], lora.scale * (alpha / rank))


def _metadata_alpha(module: str, metadata: Mapping[str, object], rank: int) -> float:
    """peft's ``lora_alpha`` with its exceptions by module; without metadata it is the rank, as diffusers takes it."""
    patterns = metadata.get("alpha_pattern")
    if isinstance(patterns, Mapping) and module in patterns:
        return float(patterns[module])
    alpha = metadata.get("lora_alpha")
    return float(alpha) if isinstance(alpha, int | float) else float(rank)


class LoraMerger:
    """All LoRA files of a run, ready to merge into units of one checkpoint's transformer."""

    def __init__(
        self, loras: Sequence[Lora], units: Sequence[Unit], checkpoint: Checkpoint, device: torch.device
    ) -> None:
        weights = {entry.name: (unit.name, inside_block(entry), entry) for unit in units for entry in unit.tensors}
        self._deltas: dict[str, dict[str, list[Delta]]] = {}
        for lora in loras:
            found = read_lora(lora)
            unmatched = sorted(module for module in found if f"{module}.weight" not in weights)
            if unmatched:
                more = f" and {len(unmatched) - 5} more" if len(unmatched) > 5 else ""
                raise LoraError(
                    f"{lora.file}: made for another model: {checkpoint.name} has no {', '.join(unmatched[:5])}{more}"
                )
            for module, delta in found.items():
                unit, key, entry = weights[f"{module}.weight"]
                if entry.shape != (delta.up.shape[0], delta.down.shape[1]):
                    raise LoraError(
                        f"{lora.file}: {module} is {delta.up.shape[0]}x{delta.down.shape[1]}, "
                        f"{checkpoint.name} has {'x'.join(map(str, entry.shape))}"
                    )
                placed = Delta(delta.down.to(device), delta.up.to(device), delta.scale)
                self._deltas.setdefault(unit, {}).setdefault(key, []).append(placed)

    def names(self, unit: str) -> frozenset[str]:
        """The tensors of a unit that are changed."""
        return frozenset(self._deltas.get(unit, ()))

    def merge(self, unit: str, tensors: Mapping[str, Tensor]) -> None:
        """Add every file's delta, in the order the files were given."""
        with torch.no_grad():
            for key, deltas in self._deltas.get(unit, {}).items():
                for delta in deltas:
                    delta.add_to(tensors[key])
