"""The whole engine on a card: clips equal the stock pipeline's there to the bit, resident and streamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from yellowsound.engine import Engine
from yellowsound.memory.geometry import Offload
from yellowsound.request import ClipRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE: dict[str, Any] = {"height": 64, "width": 96, "num_frames": 33, "num_inference_steps": 3}
GUIDANCE = {"sft": 5.0, "distill": 1.0}
SEED = 7


def stock(folder: Path) -> Any:
    """The pipeline on the card, with a plain tokenizer in the processor's place: equal output, and no torchvision."""
    kind = diffusers.Kandinsky6TI2VAPipeline
    pipeline = kind.from_pretrained(folder, tokenizer=None, dtype=torch.bfloat16, local_files_only=True)
    pipeline.register_modules(tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to("cuda")


@pytest.mark.parametrize("flavour", ["sft", "distill"])
def test_clips_equal_the_pipelines_resident_and_streamed(
    tiny_sft: Path, tiny_distill: Path, tmp_path: Path, flavour: str
) -> None:
    folder = tiny_sft if flavour == "sft" else tiny_distill
    pixels = (np.random.default_rng(0).random((90, 150, 3)) * 255).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    asked: list[dict[str, Any]] = [
        {"prompt": "a red ball"}, {"prompt": "a blue cat", "image": tmp_path / "picture.png"}, {"prompt": "a red ball"},
    ]  # fmt: skip
    size = {**SIZE, "guidance_scale": GUIDANCE[flavour]}
    pipeline, expected = stock(folder), []
    for words in asked:
        image = None if "image" not in words else Image.open(words["image"])
        arguments = {**size, "prompt": words["prompt"], "image": image, "output_type": "np"}
        expected.append(pipeline(**arguments, generator=torch.Generator().manual_seed(SEED)))
    offloads: tuple[Offload, ...] = ("none", "block")
    for offload in offloads:
        engine = Engine.load(folder, device="cuda", offload=offload)
        for number, (words, output) in enumerate(zip(asked, expected, strict=True)):
            out = tmp_path / f"{offload}-{number}.mp4"
            clip = engine.generate(ClipRequest(**words, seed=SEED, **size), out=out)
            frames = (output.frames[0] * 255).round().astype(np.uint8)
            assert np.array_equal(clip.frames, frames), (offload, number)
            sound = torch.as_tensor(output.audio).float().cpu().numpy()
            assert clip.waveform is not None and np.array_equal(clip.waveform, sound), (offload, number)
            assert out.stat().st_size > 1000
        engine.close()


def test_every_stage_leaves_its_peak_for_the_next_plan(tiny_distill: Path, tmp_path: Path) -> None:
    Image.new("RGB", (96, 64)).save(tmp_path / "picture.png")
    engine = Engine.load(tiny_distill, device="cuda", offload="block")
    request = ClipRequest(prompt="a red ball", image=tmp_path / "picture.png", seed=SEED, **SIZE)
    clip = engine.generate(request)
    engine.close()
    (recorded,) = json.loads((Path(os.environ["XDG_CACHE_HOME"]) / "yellowsound" / "peaks.json").read_text()).values()
    assert {key.split("/")[0] for key in recorded} == {"text", "image", "denoise", "decode_whole", "audio"}
    assert 0 < max(recorded.values()) < clip.metadata["peak_vram_bytes"]


def test_a_cap_holds_for_memory_that_is_kept_for_later(tiny_distill: Path) -> None:
    engine = Engine.load(tiny_distill, device="cuda", vram_bytes=3 << 30)
    try:
        engine.generate(ClipRequest(prompt="a red ball", seed=SEED, **SIZE))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        for size in (2 << 30, (2 << 30) + (64 << 20)):  # the second fits only if the first was given back
            torch.empty(size, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        engine.close()
