"""Whole clips: diffusers' pipeline and our loop, with the transformer streamed, against diffusers' pipeline alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import Kandinsky6TI2VAPipeline
from PIL import Image
from streaming_world import plan_of

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.stack import close_streamed, driver_of, end_clip, predict, prepare_clip
from yellowsound.stages.denoise import denoise
from yellowsound.stages.latents import Latents
from yellowsound.stages.text import TextEmbeds

DTYPES = (torch.float32, torch.bfloat16)


def pipeline(folder: Path, dtype: torch.dtype, **parts: Any) -> Any:
    """The stock pipeline without its text encoders: prompts come in as embeddings."""
    absent = dict.fromkeys(("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = Kandinsky6TI2VAPipeline.from_pretrained(str(folder), torch_dtype=dtype, **absent, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def embeddings(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {
        name: torch.randn(*shape, generator=generator).to(dtype)
        for name, shape in {
            "prompt_embeds": (1, 24, 64),
            "pooled_prompt_embeds": (1, 32),
            "negative_prompt_embeds": (1, 17, 64),
            "negative_pooled_prompt_embeds": (1, 32),
        }.items()
    }


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8))


def run(pipe: Any, dtype: torch.dtype, *, guidance_scale: float, image: Image.Image | None) -> Any:
    with torch.no_grad():
        return pipe(
            **embeddings(dtype),
            image=image,
            height=64,
            width=96,
            num_frames=9,
            num_inference_steps=3,
            guidance_scale=guidance_scale,
            generator=torch.Generator().manual_seed(0),
            output_type="latent",
            return_dict=False,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("flavour", "guidance"), [("sft", 5.0), ("distill", 1.0)])
@pytest.mark.parametrize("with_image", [False, True])
def test_the_pipeline_runs_a_streamed_transformer_to_the_same_latents(
    request: pytest.FixtureRequest, flavour: str, guidance: float, with_image: bool, dtype: torch.dtype
) -> None:
    folder: Path = request.getfixturevalue(f"tiny_{flavour}")
    checkpoint = Checkpoint.open(folder)
    stock = pipeline(folder, dtype)
    options: dict[str, Any] = {"guidance_scale": guidance, "image": picture() if with_image else None}
    expected = run(stock, dtype, **options)
    stock.transformer = load_streamed_transformer(checkpoint, plan_of(checkpoint, "VRD"), "cpu", dtype)
    found = run(stock, dtype, **options)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    close_streamed(stock.transformer)


@pytest.mark.parametrize("dtype", DTYPES)
def test_our_loop_streams_both_branches_in_one_pass_to_the_same_latents(tiny_sft: Path, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    stock = pipeline(tiny_sft, dtype)
    expected = run(stock, dtype, guidance_scale=5.0, image=None)
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, "RD"), "cpu", dtype)
    given = embeddings(dtype)
    texts = [
        TextEmbeds(given["prompt_embeds"], given["pooled_prompt_embeds"], None),
        TextEmbeds(given["negative_prompt_embeds"], given["negative_pooled_prompt_embeds"], None),
    ]
    generator = torch.Generator().manual_seed(0)
    video = stock.prepare_latents(1, 16, 64, 96, 9, dtype, torch.device("cpu"), generator, None)
    audio = stock.prepare_audio_latents(1, 40, 17, dtype, torch.device("cpu"), generator, None)
    stock.scheduler.set_timesteps(3)
    with torch.no_grad():
        prepare_clip(model, stock.scheduler.timesteps, [(text.tokens, text.pooled, text.mask) for text in texts])
        latents = denoise(model, stock.scheduler, Latents(video, audio, None), texts, 5.0, 3, predict=predict)
        end_clip(model)
    assert torch.equal(latents.video.permute(0, 4, 1, 2, 3), expected[0])
    assert latents.audio is not None and torch.equal(latents.audio.permute(0, 2, 1), expected[1])
    driver = driver_of(model)
    assert driver is not None
    assert driver.conveyor.counts.visits == 4 + 4 + 3 * 4  # text blocks, modulations, three steps of four blocks
    close_streamed(model)


def test_predict_on_a_resident_model_is_diffusers_own_calls(tiny_sft: Path) -> None:
    stock = pipeline(tiny_sft, torch.float32).transformer
    prepare_clip(stock, torch.tensor([1.0]), [])
    end_clip(stock)
    close_streamed(stock)
    assert driver_of(stock) is None
