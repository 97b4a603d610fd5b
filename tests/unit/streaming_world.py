"""Plans by hand, inputs and stock models for tests that hold a streamed model to the resident one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import Kandinsky6Transformer3DModel
from torch import Tensor

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.units import Home, units_of

HOMES = {"V": Home.VRAM, "R": Home.RAM, "D": Home.DISK}
LAYOUTS = ("V", "R", "D", "VRD", "DRV", "RRD")


@dataclass(frozen=True)
class HandPlan:
    """What loading needs of a plan, with small slots, ring and chunks."""

    homes: Mapping[str, Home]
    slots: int = 2
    slot_bytes: int = 0
    text_slots: int = 2
    text_slot_bytes: int = 0
    ring_bytes: int = 4 * 65536
    chunk_bytes: int = 65536
    results_home: Home = Home.RAM


def plan_of(checkpoint: Checkpoint, pattern: str, **sizes: Any) -> HandPlan:
    """Homes by repeating the letters of ``pattern`` over the units in order of use."""
    names = list(units_of(checkpoint))
    return HandPlan({name: HOMES[pattern[i % len(pattern)]] for i, name in enumerate(names)}, **sizes)


@cache
def stock_transformer(folder: Path, dtype: torch.dtype) -> Any:
    return Kandinsky6Transformer3DModel.from_pretrained(str(folder / "transformer"), dtype=dtype).eval()


@dataclass(frozen=True)
class Clip:
    """Inputs of one clip's transformer calls: noise stays the same, timesteps and text branches change."""

    timesteps: Tensor
    branches: list[tuple[Tensor, Tensor, Tensor | None]]
    video: Tensor
    audio: Tensor | None
    tail: dict[str, Any]

    def to(self, device: str) -> Clip:
        """The same clip on another device."""
        branches = [(t.to(device), p.to(device), None if m is None else m.to(device)) for t, p, m in self.branches]
        tail = {name: _moved(value, device) for name, value in self.tail.items()}
        audio = None if self.audio is None else self.audio.to(device)
        return Clip(self.timesteps.to(device), branches, self.video.to(device), audio, tail)

    def inputs(self, step: int, branch: int) -> dict[str, Any]:
        tokens, pooled, mask = self.branches[branch]
        return {
            "hidden_states": self.video,
            "audio_hidden_states": self.audio,
            "encoder_hidden_states": tokens,
            "pooled_projections": pooled,
            "encoder_attention_mask": mask,
            "timestep": self.timesteps[step].expand(1),
            **self.tail,
        }


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple(tensor.to(device) for tensor in value)
    return value if value is None else value.to(device)


def make_clip(
    dtype: torch.dtype, *, steps: int = 2, guidance: bool = True, image: bool = False, audio: bool = True, seed: int = 0
) -> Clip:
    """A small clip for the tiny checkpoints: a padded prompt and, with guidance, an unpadded shorter one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    mask = torch.ones(1, 30, dtype=torch.bool)
    mask[:, 20:] = False
    branches: list[tuple[Tensor, Tensor, Tensor | None]] = [(draw(1, 30, 64), draw(1, 32), mask)]
    if guidance:
        branches.append((draw(1, 21, 64), draw(1, 32), None))
    frames = 3 + image
    tail: dict[str, Any] = {"visual_rope_pos": None, "visual_token_type_ids": None}
    if image:
        times = torch.cat([torch.arange(3), torch.zeros(1, dtype=torch.long)])
        tail = {
            "visual_rope_pos": (times, torch.arange(3), torch.arange(4)),
            "visual_token_type_ids": torch.tensor([[0, 0, 0, 1]]),
        }
    sound = draw(1, 17, 40) if audio else None
    return Clip(torch.tensor([999.0, 640.5, 20.25])[:steps], branches, draw(1, frames, 6, 8, 33), sound, tail)


@torch.no_grad()
def run_in_turn(transformer: Any, clip: Clip) -> list[Any]:
    """Every call of the clip by itself, as diffusers makes them."""
    return [
        transformer(**clip.inputs(step, branch), return_dict=False)
        for step in range(len(clip.timesteps))
        for branch in range(len(clip.branches))
    ]


def equal(one: list[Any], other: list[Any]) -> bool:
    """Bit for bit, every tensor of every call; NaN is never equal."""
    return len(one) == len(other) and all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(one, other, strict=True)
    )
