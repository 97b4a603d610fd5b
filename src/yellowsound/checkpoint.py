"""Checkpoint: a folder in the Diffusers layout, opened, verified and described from its headers.

Reads configs and safetensors headers only: no weight is read and torch is not imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yellowsound.request import Defaults, Variant


class CheckpointError(ValueError):
    """A checkpoint that must not be used: one line naming file, found, expected and remedy."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One stored tensor: where its bytes lie in which file. ``dtype`` is safetensors' name (F32, BF16, ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset_bytes: int  # from the start of the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the pipeline (``transformer``, ``vae``, ...): its folder, config and stored tensors."""

    name: str
    folder: Path
    class_name: str
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @property
    def size_bytes(self) -> int:
        return sum(t.size_bytes for t in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified folder: variant, components and the defaults that a request takes from it."""

    folder: Path
    name: str
    variant: Variant
    components: dict[str, Component]
    defaults: Defaults

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Read and verify ``folder`` without reading a weight. Raises CheckpointError."""
        raise NotImplementedError
