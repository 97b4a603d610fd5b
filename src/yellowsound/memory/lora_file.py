"""LoRA files: read by their diffusers/peft names and checked whole, so that merging cannot fail on them later."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from yellowsound.memory.lora_config import METADATA_KEY, LoraConfig, LoraError, read_config

_PREFIXES = ("transformer.", "diffusion_model.", "base_model.model.", "")
_ROLES = {
    ".lora_A.weight": "down", ".lora_B.weight": "up", ".lora_down.weight": "down", ".lora_up.weight": "up",
    ".lora_A.default.weight": "down", ".lora_B.default.weight": "up", ".alpha": "alpha",
}  # fmt: skip
_PAIR = "expected pairs named NAME.lora_A.weight and NAME.lora_B.weight"
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA file and the weight it is merged with. Raises LoraError for a weight that is no finite number."""

    file: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise LoraError(f"{self.file}: its weight is {self.scale}, expected a finite number such as 0.8")

    @classmethod
    def parse(cls, text: str) -> Lora:
        """``FILE`` or ``FILE:0.8``; text that names a file as a whole is that file. Raises LoraError."""
        name, _, number = text.rpartition(":")
        scale = _as_number(number)
        if os.path.isfile(text) or not name or scale is None:
            name, scale = text, 1.0
        if not os.path.isfile(name):
            raise LoraError(f"{name}: no such LoRA file; give FILE or FILE:WEIGHT, for example style.safetensors:0.8")
        return cls(Path(name), scale)


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
            down, up = down.float(), up.float()
        weight += (up @ down).mul_(self.scale).to(weight.dtype)


def read_lora(lora: Lora) -> dict[str, Delta]:
    """The deltas of a file, in host memory, by the name of the module they belong to. Raises LoraError."""
    tensors, metadata = _read(lora.file)
    if not tensors:
        raise LoraError(f"{lora.file}: has no tensors, {_PAIR}")
    prefix = _common_prefix(tensors)
    config = read_config(metadata, prefix, lora.file)
    modules = _modules(tensors, prefix, lora.file)
    return {module: _delta(module, names, tensors, config, lora) for module, names in modules.items()}


def _read(file: Path) -> tuple[dict[str, Tensor], str | None]:
    try:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            return {name: opened.get_tensor(name) for name in names}, (opened.metadata() or {}).get(METADATA_KEY)
    except OSError as error:
        raise LoraError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise LoraError(f"{file}: is no safetensors file: {error}") from error


def _common_prefix(names: Iterable[str]) -> str:
    return next(prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in names))


def _modules(names: Iterable[str], prefix: str, file: Path) -> dict[str, dict[str, str]]:
    """Tensor names by module and role (``down``, ``up``, ``alpha``)."""
    modules: dict[str, dict[str, str]] = {}
    for name in names:
        plain = name.removeprefix(prefix)
        ending = next((ending for ending in _ROLES if plain.endswith(ending)), None)
        if ending is None:
            raise LoraError(f"{file}: tensor {plain} is no LoRA pair, {_PAIR}")
        roles = modules.setdefault(plain.removesuffix(ending), {})
        other = roles.setdefault(_ROLES[ending], name)
        if other != name:
            raise LoraError(f"{file}: {other} and {name} stand for the same, expected one of them")
    return modules


def _delta(
    module: str, names: Mapping[str, str], tensors: Mapping[str, Tensor], config: LoraConfig, lora: Lora
) -> Delta:
    if not {"down", "up"} <= set(names):
        raise LoraError(f"{lora.file}: {module} has {' and '.join(sorted(names))} only; lora_A and lora_B are needed")
    for role, shape in (("down", "(rank, inputs)"), ("up", "(outputs, rank)")):
        _check_factor(names[role], tensors[names[role]], shape, lora.file)
    down, up = tensors[names["down"]], tensors[names["up"]]
    rank = _rank(names, down, up, config.rank_of(module), lora.file)
    alpha = _alpha(names["alpha"], tensors[names["alpha"]], lora.file) if "alpha" in names else None
    strength = config.strength(module, rank, lora.scale, alpha)
    if not abs(strength) <= torch.finfo(torch.float32).max:
        raise LoraError(f"{lora.file}: {module} would be merged {strength} times, expected a float32 number")
    return Delta(down, up, strength)


def _check_factor(name: str, tensor: Tensor, shape: str, file: Path) -> None:
    if tensor.dtype not in _DTYPES:
        raise LoraError(f"{file}: {name} is {_word(tensor.dtype)}, expected a floating dtype such as bfloat16")
    if tensor.ndim != 2:
        raise LoraError(f"{file}: {name} has the shape {list(tensor.shape)}, expected two dimensions {shape}")
    if not tensor.float().isfinite().all():
        raise LoraError(f"{file}: {name} holds NaN or infinite numbers, expected finite ones")


def _rank(names: Mapping[str, str], down: Tensor, up: Tensor, said: float | None, file: Path) -> int:
    rank = down.shape[0]
    if rank == 0:
        raise LoraError(f"{file}: {names['down']} has rank 0, expected at least 1")
    if up.shape[1] != rank:
        raise LoraError(f"{file}: {names['up']} has rank {up.shape[1]}, expected {rank}, as {names['down']} has")
    if said is not None and said != rank:
        raise LoraError(f"{file}: {names['down']} has rank {rank}, expected {said:g}, as the file's metadata say")
    return rank


def _alpha(name: str, tensor: Tensor, file: Path) -> float:
    """One number; whole ones may be stored as integers, as some trainers do."""
    if tensor.numel() != 1 or tensor.is_complex() or tensor.dtype == torch.bool:
        raise LoraError(
            f"{file}: {name} is {_word(tensor.dtype)} of shape {list(tensor.shape)}, expected a single number"
        )
    alpha = float(tensor)
    if not math.isfinite(alpha):
        raise LoraError(f"{file}: {name} is {alpha}, expected a finite number")
    return alpha


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
