"""Shells: modules of a block class without weights of their own; a unit's tensors are bound to them for a visit.

A shell does not know which block it is. Modulations inside it are looked up, not computed: the stack sets the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Lookup(nn.Module):
    """Stands where a modulation stood and returns the row that was put in; its buffer keeps its address."""

    row: Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("row", torch.empty(0, device=device), persistent=False)

    def put(self, row: Tensor) -> None:
        """Copy ``row`` (batch, n) in from wherever it is kept, on the current stream."""
        if self.row.shape != row.shape or self.row.dtype != row.dtype:
            with torch.inference_mode(False):
                self.row = torch.empty(row.shape, dtype=row.dtype, device=self.row.device)
        self.row.copy_(row, non_blocking=True)

    def forward(self, _time_embed: Tensor) -> Tensor:
        return self.row


class Shell:
    """One module whose parameters are pointed at a unit's tensors. Held outside module registration."""

    def __init__(self, module: nn.Module, call: Callable[..., Any] | None = None) -> None:
        self.module = module.eval().requires_grad_(False)
        self.call: Callable[..., Any] = call or module
        self._homes = {
            f"{path}.{name}" if path else name: (owner, name)
            for path, owner in module.named_modules()
            for name in owner._parameters
            if owner._parameters[name] is not None
        }

    def bind(self, tensors: Mapping[str, Tensor]) -> None:
        """Point every parameter at its tensor. Raises KeyError if one is missing."""
        for key, (owner, name) in self._homes.items():
            parameter = owner._parameters[name]
            assert parameter is not None
            if parameter.is_meta:
                with torch.inference_mode(False):
                    owner._parameters[name] = nn.Parameter(tensors[key], requires_grad=False)
            else:
                parameter.data = tensors[key]

    def keys(self) -> set[str]:
        return set(self._homes)

    def compile(self, **options: Any) -> None:
        """Run the module through ``torch.compile``: one graph serves every block, since only ``.data`` changes."""
        self.call = torch.compile(self.module, **options)

    def unbind(self) -> None:
        """Refer to no unit's memory any more."""
        for owner, name in self._homes.values():
            parameter = owner._parameters[name]
            if parameter is not None and not parameter.is_meta:
                owner._parameters[name] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)


def take_modulations(block: nn.Module, names: tuple[str, ...], device: torch.device) -> tuple[nn.Module, list[Lookup]]:
    """Put a Lookup in the place of each modulation of ``block``; returns the modulations and the Lookups."""
    taken, lookups = nn.Module(), []
    for name in names:
        path, _, leaf = name.rpartition(".")
        owner = block.get_submodule(path)
        _put_submodule(taken, name, owner.get_submodule(leaf))
        lookups.append(Lookup(device))
        setattr(owner, leaf, lookups[-1])
    return taken, lookups


def _put_submodule(root: nn.Module, name: str, module: nn.Module) -> None:
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(leaf, module)
