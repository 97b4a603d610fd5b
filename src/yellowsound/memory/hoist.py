"""Hoisting: what depends on timestep and prompt only is computed once a clip and looked up in every step.

Modulations and text blocks see no latents. Their results for all steps and branches are computed as their weights pass
in lap one, one row at a time as diffusers does (stacking the rows would change bits), and kept in a home of their own.
They are written on the stream that computes; from host memory a step's rows come back on the other (rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from yellowsound.memory.device import Device, Fence, Stream
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.rows import RowLayout
from yellowsound.memory.units import ALIGNMENT_BYTES, round_up

TOWERS = ("video", "audio")


@dataclass(frozen=True, slots=True)
class Branch:
    """One guidance branch's text: tokens (B, L, D), pooled (B, P), mask (B, L) or None."""

    tokens: Tensor
    pooled: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, inputs: dict[str, Any]) -> Branch:
        """Out of the transformer's arguments."""
        return cls(inputs["encoder_hidden_states"], inputs["pooled_projections"], inputs.get("encoder_attention_mask"))

    def equals(self, other: Branch) -> bool:
        """Whether the text is the same to the bit."""
        if (self.mask is None) != (other.mask is None):
            return False
        pairs = [(self.tokens, other.tokens), (self.pooled, other.pooled), (self.mask, other.mask)]
        return all(
            a is b or (a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)) for a, b in pairs
        )

    def is_given_by(self, other: Branch) -> bool:
        """Whether these are the very same tensors: no look at their contents, hence no wait for the device."""
        same = _same_tensor(self.tokens, other.tokens) and _same_tensor(self.pooled, other.pooled)
        return same and (self.mask is other.mask or _same_tensor(self.mask, other.mask))


def _same_tensor(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()


class Store:
    """Memory for results: page-locked on the host, or on the device. Bump-allocated, kept from clip to clip."""

    def __init__(self, device: Device, *, on_device: bool) -> None:
        self.must_travel = not (on_device or device.uses_host_memory)
        self._device, self._on_device = device, on_device
        self._memory: HostBlock | Tensor | None = None
        self._used = 0

    def reset(self, size_bytes: int) -> None:
        """Begin anew with room for ``size_bytes``; what was handed out before is no longer valid."""
        self._used = 0
        if self._memory is None or _size(self._memory) < size_bytes:
            self.close()
            if self._on_device:
                self._memory = self._device.alloc(size_bytes)
            else:
                self._memory = self._device.alloc_host(size_bytes)
                self._memory.populate()
                self._memory.pin()

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next piece as a tensor. Raises MemoryError past what ``reset`` was asked for."""
        size = torch.Size(shape).numel() * dtype.itemsize
        assert self._memory is not None
        memory = self._memory.bytes if isinstance(self._memory, HostBlock) else self._memory
        if self._used + size > memory.numel():
            raise MemoryError(f"results need {self._used + size} bytes, {memory.numel()} were reserved")
        with torch.inference_mode(False):
            piece = memory[self._used : self._used + size].view(dtype).view(tuple(shape))
        self._used = round_up(self._used + size, ALIGNMENT_BYTES)
        return piece

    def close(self) -> None:
        if self._memory is not None:
            self._device.synchronize(self._device.record(Stream.COMPUTE, Fence.IDLE), Fence.IDLE)
            self._device.free(self._memory)
        self._memory = None


@dataclass(slots=True)
class Hoist:
    """The results of one clip. Rows of (step, branch) are computed branch by branch.

    time_embeds: per row, the video's and the audio's time embedding. layouts, kept: per branch, what lies where in a
    row, and all rows of the clip in their home, uint8 (steps, bytes). modulated: blocks whose modulations are there.
    """

    timesteps: Tensor
    branches: list[Branch]
    time_embeds: list[tuple[Tensor, Tensor]]
    layouts: list[RowLayout]
    kept: list[Tensor]
    has_texts: bool = False
    modulated: set[int] = field(default_factory=set)

    @property
    def steps(self) -> int:
        return len(self.timesteps)

    def row_of(self, timestep: Tensor, branch: Branch) -> tuple[int, int] | None:
        """(step, branch index) of a transformer call; None if it is no call of this clip.

        Asks where the tensors lie first; looks at the timestep's value (and waits for it) only if that says nothing.
        """
        index = next((i for i, known in enumerate(self.branches) if known.is_given_by(branch)), None)
        if index is None:
            return None
        ahead = timestep.data_ptr() - self.timesteps.data_ptr()
        item = self.timesteps.element_size()
        if timestep.dtype == self.timesteps.dtype and 0 <= ahead < self.steps * item:
            return ahead // item, index
        found = (self.timesteps == timestep.reshape(-1)[0]).nonzero()
        return (int(found[0]), index) if len(found) else None

    def text(self, tower: str, step: int, branch: int) -> Tensor:
        """Where the output of a tower's text blocks for (step, branch) is kept: (B, L, D)."""
        return self.layouts[branch].text(self.kept[branch][step], tower)

    def modulation(self, block: int, column: int, step: int, branch: int) -> Tensor:
        """Where one modulation of a block for (step, branch) is kept: (B, n)."""
        return self.layouts[branch].modulation(self.kept[branch][step], block, column)

    @property
    def is_complete(self) -> bool:
        """Whether every result is there, or will be after what is queued."""
        return self.has_texts and all(len(self.modulated) == layout.blocks for layout in self.layouts)

    def is_for(self, timesteps: Tensor, branches: Sequence[Branch]) -> bool:
        """Whether the results hold for another clip too: same schedule and texts, to the bit."""
        return (
            self.timesteps.shape == timesteps.shape
            and torch.equal(self.timesteps, timesteps)
            and len(self.branches) == len(branches)
            and all(known.equals(other) for known, other in zip(self.branches, branches, strict=True))
        )


def time_embeds(transformer: Any, timesteps: Tensor, branches: Sequence[Branch]) -> list[tuple[Tensor, Tensor]]:
    """The time embeddings of every (branch, step) row, one call each, exactly as the transformer makes them."""
    rows = []
    for branch in branches:
        for timestep in timesteps:
            time = timestep.expand(branch.tokens.shape[0])
            video = transformer.video_time_embeddings(time) + transformer.video_pooled_text_embeddings(branch.pooled)
            audio = transformer.audio_time_embeddings(time) + transformer.audio_pooled_text_embeddings(branch.pooled)
            rows.append((video, audio))
    return rows


def _size(memory: HostBlock | Tensor) -> int:
    return memory.size_bytes if isinstance(memory, HostBlock) else memory.numel()
