"""Workloads: synthetic checkpoints on disk, geometries, and the inputs of a denoising loop without a text encoder."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.results import say

if TYPE_CHECKING:
    import torch

    from yellowsound.checkpoint import Checkpoint
    from yellowsound.memory.geometry import Geometry
    from yellowsound.stages.latents import Latents
    from yellowsound.stages.text import TextEmbeds

PROMPT_TOKENS, PADDED_TOKENS = 256, 1024  # a prompt of that many, padded and masked as the pipeline does
SMALL = {
    "model_dim": 128, "ff_dim": 256, "time_dim": 64, "num_text_blocks": 1, "num_visual_blocks": 4, "model_dim_a": 64,
    "time_dim_a": 32, "ff_dim_a": 128, "axes_dims": [16, 24, 24], "axes_dims_a": [16, 24, 24], "in_text_dim": 64,
    "in_text_dim2": 32,
}  # fmt: skip
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """What is made: pixels, frames, a picture to start from or not, guidance."""

    width: int = 864
    height: int = 480
    frames: int = 121
    tail: bool = False
    guidance: float = 1.0

    @property
    def key(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}{'+picture' if self.tail else ''}"

    @property
    def branches(self) -> int:
        return 2 if self.guidance > 1 else 1

    def geometry(self, steps: int, dtype: str, text_tokens: int) -> Geometry:
        """The planner's view of it."""
        from yellowsound.memory.geometry import Geometry

        return Geometry(
            frames=self.frames, height=self.height, width=self.width, tail=self.tail, branches=self.branches,
            steps=steps, dtype=dtype, text_tokens=text_tokens,  # type: ignore[arg-type]
        )  # fmt: skip


MAIN = Shape()
SMOKE = Shape(width=96, height=64, frames=9)


@dataclass(frozen=True, slots=True)
class Weights:
    """A synthetic checkpoint like a published one: all parts or the transformer alone, all blocks (None) or some."""

    like: str
    blocks: int | None = None
    small: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        return f"{'small-' if self.small else ''}{'whole-' if self.whole else ''}{self.like}-{self.blocks or 'all'}"

    def folder(self, data: Path) -> Path:
        """The folder, written first if it is not there; other synthetic ones make room if they must."""
        place = data / self.name
        if (place / "model_index.json").exists():
            return place
        from yellowsound.weights.synth import POOL_VALUES, synthesize

        plan = self._blueprint()
        needed = sum(_stored_bytes(tensor) for part in plan.parts for tensor in part.tensors.values())
        data.mkdir(parents=True, exist_ok=True)
        make_room(data, needed + GIB // 4)
        began = time.perf_counter()
        size = synthesize(plan, place, pool_values=1 << 16 if self.small else POOL_VALUES)
        spent = time.perf_counter() - began
        say(f"wrote {place.name}: {size / 1e9:.2f} GB in {spent:.1f} s, {size / spent / 1e9:.2f} GB/s")
        return place

    def _blueprint(self) -> Any:
        from yellowsound.weights.blueprint import PARTS, Blueprint, blueprint, transformer_part
        from yellowsound.weights.catalog import find
        from yellowsound.weights.shapes import transformer_config

        entry = find(self.like)
        assert entry is not None
        if not self.small:
            return blueprint(entry, PARTS if self.whole else ["transformer"], self.blocks)
        variant = "piflow" if self.like.endswith("-distill") else "flow"
        config = {**transformer_config("lite", variant), **SMALL}  # type: ignore[arg-type]
        return Blueprint(f"small-{self.like}", variant, (transformer_part(config, variant),))  # type: ignore[arg-type]


def _stored_bytes(tensor: tuple[str, tuple[int, ...]]) -> int:
    from math import prod

    return prod(tensor[1]) * {"F32": 4, "BF16": 2, "F16": 2}[tensor[0]]


def make_room(data: Path, needed: int, keep: Path | None = None) -> None:
    """Remove synthetic folders but ``keep``, and nothing else, until there is room; whoever writes then may fail."""
    for folder in sorted(data.iterdir()):
        if folder == keep:
            continue
        if shutil.disk_usage(data).free >= needed:
            return
        mark = folder / "yellowsound.json"
        if mark.exists() and json.loads(mark.read_text()).get("synthetic"):
            say(f"removing {folder.name} to make room")
            shutil.rmtree(folder)


def make_latents(
    checkpoint: Checkpoint, shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Latents:
    """Seeded noise of a clip, with a made-up clean frame where there is a picture."""
    import torch

    from yellowsound.request import ClipRequest
    from yellowsound.stages.latents import audio_tokens, draw_latents

    request = ClipRequest(
        prompt="noise", width=shape.width, height=shape.height, num_frames=shape.frames, seed=seed
    ).resolve(checkpoint.defaults)
    generator = torch.Generator("cpu").manual_seed(seed)
    config = checkpoint.components["transformer"].config
    first = None
    if shape.tail:
        size = (1, shape.height // 8, shape.width // 8, int(config["in_visual_dim"]))
        first = torch.randn(size, generator=generator).to(device, dtype)
    assert request.frame_rate is not None
    return draw_latents(
        request, config, first_frame=first, audio_length=audio_tokens(shape.frames, request.frame_rate), dtype=dtype,
        device=device, generator=generator,
    )  # fmt: skip


def make_texts(
    checkpoint: Checkpoint, branches: int, tokens: int, device: torch.device, dtype: torch.dtype
) -> list[TextEmbeds]:
    """Random embeddings of a padded prompt for each branch: a quarter of ``tokens`` is text, the rest is masked."""
    import torch

    from yellowsound.stages.text import TextEmbeds

    config = checkpoint.components["transformer"].config
    generator = torch.Generator("cpu").manual_seed(1)
    texts = []
    for _ in range(branches):
        mask = torch.zeros(1, tokens, dtype=torch.bool)
        mask[:, : tokens * PROMPT_TOKENS // PADDED_TOKENS] = True
        rows = torch.randn(1, tokens, int(config["in_text_dim"]), generator=generator)
        pooled = torch.randn(1, int(config["in_text_dim2"]), generator=generator)
        texts.append(TextEmbeds(rows, pooled, mask).to(device, dtype))
    return texts


def import_libraries() -> None:
    """Import what loading needs, so that no arm's time contains it."""
    import accelerate
    import diffusers
    import transformers

    assert accelerate and transformers and diffusers.Kandinsky6Transformer3DModel


def load_scheduler(checkpoint: Checkpoint) -> Any:
    import diffusers

    part = checkpoint.components["scheduler"]
    return getattr(diffusers, part.class_name).from_pretrained(str(part.folder), local_files_only=True)


def load_stock(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """diffusers' own transformer on the CPU, weights as they are mapped."""
    import diffusers

    path = str(checkpoint.components["transformer"].folder)
    model = diffusers.Kandinsky6Transformer3DModel.from_pretrained(path, dtype=dtype, local_files_only=True)
    return model.eval().requires_grad_(False)
