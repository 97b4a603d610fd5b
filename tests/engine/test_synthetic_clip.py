"""A synthetic checkpoint of small parts makes a clip end to end, and its latents stay finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from yellowsound import ClipRequest, Engine
from yellowsound.checkpoint import Checkpoint
from yellowsound.request import Variant
from yellowsound.weights.blueprint import Blueprint, transformer_part
from yellowsound.weights.shapes import PartPlan, transformer_config
from yellowsound.weights.synth import synthesize

NARROW = {
    "model_dim": 128, "ff_dim": 256, "time_dim": 64, "num_text_blocks": 1, "num_visual_blocks": 2, "model_dim_a": 64,
    "time_dim_a": 32, "ff_dim_a": 128, "axes_dims": [16, 24, 24], "axes_dims_a": [16, 24, 24],
    "in_text_dim": 64, "in_text_dim2": 32,
}  # fmt: skip


def plan_like(folder: Path, variant: Variant) -> Blueprint:
    """All parts: the other ones in the shapes of the tiny checkpoint ``folder``."""
    parts = [transformer_part({**transformer_config("lite", variant), **NARROW}, variant)]
    for name, part in Checkpoint.open(folder).components.items():
        if part.tensors and name != "transformer":
            parts.append(PartPlan(name, part.config, {t.name: (t.dtype, t.shape) for t in part.tensors.values()}))
    return Blueprint("made-up", variant, tuple(parts), {n: folder / n for n in ("tokenizer", "tokenizer_2")})


@pytest.mark.parametrize("variant", ["flow", "piflow"])
def test_finite_clip(tiny_sft: Path, tiny_distill: Path, tmp_path: Path, variant: Variant) -> None:
    plan = plan_like(tiny_sft if variant == "flow" else tiny_distill, variant)
    assert plan.absent == ()
    synthesize(plan, tmp_path / "made up", pool_values=1 << 18)
    engine = Engine.load(tmp_path / "made up", device="cpu", dtype="bfloat16")
    clip = engine.generate(ClipRequest(prompt="x", width=48, height=32, num_frames=5, num_inference_steps=6, seed=0))
    assert clip.latents is not None and clip.latents.audio is not None and clip.waveform is not None
    for latents in (clip.latents.video, clip.latents.audio):
        assert bool(latents.isfinite().all()) and 0.1 < float(latents.float().std()) < 10
    assert clip.frames.shape == (5, 32, 48, 3) and np.isfinite(clip.waveform).all()
    assert clip.metadata["checkpoint"] == "made-up" and clip.metadata["revision"] is None
