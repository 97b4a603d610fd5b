"""Encoded prompts, kept: a known prompt never loads the 16.6 GB encoder again.

The key is everything the numbers depend on (encoder weights, template, prompt, device, dtype, library versions), so a
stored embedding has the bits that encoding would give. Each file holds the hash of its tensors, so that one that is
damaged, or written by something else, counts as none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from yellowsound.cache import cache_folder, keep_newest, write_whole
from yellowsound.stages.text import TextEmbeds, prompt_template

KEPT_PROMPTS = 128  # at 7.3 MB each for the published encoder, under 1 GB


@dataclass(slots=True)
class TextStore:
    """Embeddings by prompt, in memory and (where a folder can be written) on disk; ``encoder`` names the weights."""

    encoder: str
    device: torch.device
    dtype: torch.dtype
    folder: Path | None = field(default_factory=lambda: cache_folder("prompts"))
    _memory: dict[str, TextEmbeds] = field(default_factory=dict)

    def get(self, prompt: str) -> TextEmbeds | None:
        """The prompt's embeddings if they were ever kept; a damaged file counts as none."""
        key = self._key(prompt)
        if key not in self._memory and self.folder is not None:
            try:
                path = self.folder / f"{key}.safetensors"
                self._remember(key, _unpack(load(path.read_bytes())))
                path.touch()
            except (OSError, SafetensorError, KeyError, ValueError):
                return None
        return self._memory.get(key)

    def put(self, prompt: str, text: TextEmbeds) -> None:
        """Keep embeddings; a full or read-only disk keeps them for this process only."""
        text = text.to(torch.device("cpu"), text.tokens.dtype)
        self._remember(self._key(prompt), text)
        if self.folder is not None and write_whole(self.folder / f"{self._key(prompt)}.safetensors", save(_pack(text))):
            keep_newest(self.folder, KEPT_PROMPTS)

    def _remember(self, key: str, text: TextEmbeds) -> None:
        self._memory[key] = text
        while len(self._memory) > KEPT_PROMPTS:
            del self._memory[next(iter(self._memory))]

    def _key(self, prompt: str) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        libraries = f"{version('torch')} {version('transformers')}"
        facts = (self.encoder, prompt_template()[0], prompt, where, str(self.dtype), libraries)
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def _pack(text: TextEmbeds) -> dict[str, Tensor]:
    packed = {"tokens": text.tokens.contiguous(), "pooled": text.pooled.contiguous()}
    if text.mask is not None:
        packed["mask"] = text.mask.contiguous()
    return {**packed, "sha256": _digest(packed)}


def _unpack(tensors: dict[str, Tensor]) -> TextEmbeds:
    """What was packed. Raises KeyError for a missing tensor, ValueError for others than were packed."""
    digest = tensors.pop("sha256")
    if not digest.equal(_digest(tensors)):
        raise ValueError("the tensors are not those that were kept")
    return TextEmbeds(tensors["tokens"], tensors["pooled"], tensors.get("mask"))


def _digest(tensors: dict[str, Tensor]) -> Tensor:
    """SHA-256 over names, dtypes, shapes and bytes, as uint8 (32,)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)
