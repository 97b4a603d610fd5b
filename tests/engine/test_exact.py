"""Exact mode against Kandinsky6TI2VAPipeline in one process: latents, frames and waveform, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from yellowsound.clip import Clip
from yellowsound.engine import Engine
from yellowsound.request import ClipRequest
from yellowsound.stages.text import encode_prompt

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT = "a red ball bounces on a drum"
SEED = 7


@pytest.fixture(scope="module")
def pair(tiny_sft: Path, tiny_distill: Path) -> Callable[[str, str], tuple[Engine, Any]]:
    """``pair(flavour, dtype)``: our engine and the stock pipeline on the same folder."""
    torch.set_num_threads(1)
    kept: dict[tuple[str, str], tuple[Engine, Any]] = {}
    folders = {"sft": tiny_sft, "distill": tiny_distill}

    def get(flavour: str, dtype: str) -> tuple[Engine, Any]:
        if (flavour, dtype) not in kept:
            folder = folders[flavour]
            kept[flavour, dtype] = (Engine.load(folder, device="cpu", dtype=dtype), stock(folder, DTYPES[dtype]))
        return kept[flavour, dtype]

    return get


def stock(folder: Path, dtype: torch.dtype) -> Any:
    """The pipeline with a plain tokenizer in the processor's place: equal output, and no torchvision."""
    from diffusers import Kandinsky6TI2VAPipeline
    from transformers import AutoTokenizer

    pipeline = Kandinsky6TI2VAPipeline.from_pretrained(folder, tokenizer=None, dtype=dtype, local_files_only=True)
    pipeline.register_modules(tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def picture(tmp_path: Path) -> Path:
    pixels = (np.random.default_rng(0).random((90, 150, 3)) * 255).astype(np.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    return path


def assert_equal(clip: Clip, pipeline: Any, **arguments: Any) -> None:
    latents = pipeline(**arguments, output_type="latent", generator=torch.Generator().manual_seed(SEED))
    output = pipeline(**arguments, output_type="np", generator=torch.Generator().manual_seed(SEED))
    assert torch.equal(clip.latents.video.permute(0, 4, 1, 2, 3), latents.frames)
    frames = (output.frames[0] * 255).round().astype(np.uint8)
    assert np.array_equal(clip.frames, frames)
    if output.audio is None:
        assert clip.waveform is None
        return
    assert torch.equal(clip.latents.audio.permute(0, 2, 1), latents.audio)
    assert clip.waveform is not None and np.array_equal(clip.waveform, output.audio)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_picture", [False, True], ids=["text", "picture"])
@pytest.mark.parametrize(
    ("flavour", "guidance", "frames"), [("sft", 5.0, 9), ("sft", 1.0, 9), ("distill", 1.0, 9), ("distill", 1.0, 33)]
)
def test_bit_identical_to_the_pipeline(
    pair: Any, tmp_path: Path, flavour: str, guidance: float, frames: int, with_picture: bool, dtype: str
) -> None:
    engine, pipeline = pair(flavour, dtype)
    image = picture(tmp_path) if with_picture else None
    size = {"height": 64, "width": 96, "num_frames": frames, "num_inference_steps": 3, "guidance_scale": guidance}
    clip = engine.generate(ClipRequest(prompt=PROMPT, image=image, seed=SEED, **size))
    pil = None if image is None else Image.open(image)
    assert_equal(clip, pipeline, prompt=PROMPT, image=pil, **size)


def test_negative_prompt_is_used_and_empty_means_empty(pair: Any) -> None:
    engine, pipeline = pair("sft", "float32")
    size = {"height": 48, "width": 32, "num_frames": 5, "num_inference_steps": 2, "guidance_scale": 3.0}
    own = engine.generate(ClipRequest(prompt=PROMPT, negative_prompt="blue", seed=SEED, **size))
    assert_equal(own, pipeline, prompt=PROMPT, negative_prompt="blue", **size)
    default = engine.generate(ClipRequest(prompt=PROMPT, seed=SEED, **size))
    assert_equal(default, pipeline, prompt=PROMPT, **size)
    empty = engine.generate(ClipRequest(prompt=PROMPT, negative_prompt="", seed=SEED, **size))
    assert not torch.equal(empty.latents.video, default.latents.video)  # the stock call would give the default's


def test_base_without_sound_is_the_video_only_call(pair: Any) -> None:
    engine, pipeline = pair("sft", "float32")
    size = {"height": 48, "width": 32, "num_frames": 5, "num_inference_steps": 2, "guidance_scale": 5.0}
    clip = engine.generate(ClipRequest(prompt=PROMPT, sample_audio=False, seed=SEED, **size))
    assert_equal(clip, pipeline, prompt=PROMPT, sample_audio=False, **size)
    assert any("no audio" in message for message in clip.metadata["warnings"])


def test_distilled_without_sound_keeps_the_picture(pair: Any) -> None:
    engine, _ = pair("distill", "float32")
    size = {"height": 48, "width": 32, "num_frames": 5, "num_inference_steps": 2, "seed": SEED}
    silent = engine.generate(ClipRequest(prompt=PROMPT, sample_audio=False, **size))
    assert silent.waveform is None
    assert np.array_equal(silent.frames, engine.generate(ClipRequest(prompt=PROMPT, **size)).frames)
    assert any("no audio" in message for message in silent.metadata["warnings"])


@pytest.mark.parametrize("prompt", ["x", "a cat " * 600, "кот, 猫, 🐈", "\nline", "<|im_end|> and {braces}"])
def test_text_is_bit_equal_to_encode_prompt(pair: Any, prompt: str) -> None:
    engine, pipeline = pair("sft", "float32")
    with torch.no_grad():
        expected = pipeline.encode_prompt(prompt, do_classifier_free_guidance=False, device=torch.device("cpu"))
        found = encode_prompt(prompt, engine.text_encoders(), torch.device("cpu"))
    assert torch.equal(found.tokens, expected[0])
    assert torch.equal(found.pooled, expected[1])
    assert (found.mask is None) == (expected[2] is None)
    assert found.mask is None or torch.equal(found.mask, expected[2])


def test_the_padding_mask_is_not_lost(pair: Any) -> None:
    """The stock call drops it when it is given embeddings; a clip from kept embeddings must equal the prompt's."""
    engine, pipeline = pair("distill", "float32")
    size = {"height": 48, "width": 32, "num_frames": 5, "num_inference_steps": 2, "guidance_scale": 1.0}
    engine.encode_ahead([PROMPT])
    assert_equal(engine.generate(ClipRequest(prompt=PROMPT, seed=SEED, **size)), pipeline, prompt=PROMPT, **size)


@pytest.mark.parametrize("frames", [1, 13, 17, 29, 33, 49])
@pytest.mark.parametrize("plan", ["whole", "tiled"])
def test_decoding_in_chunks_equals_vae_decode(pair: Any, frames: int, plan: Any) -> None:
    from yellowsound.stages.decode import decode_chunks

    engine, _ = pair("sft", "float32")
    vae = engine.models.vae
    z = torch.randn((1, 16, (frames - 1) // 4 + 1, 36, 34), generator=torch.Generator().manual_seed(frames))
    z = z if plan == "tiled" and frames <= 17 else z[..., :6, :4]
    with torch.no_grad():
        chunks = list(decode_chunks(z, vae, plan))
        vae.use_tiling = plan == "tiled"
        whole = vae.decode(z, return_dict=False)[0]
        vae.use_tiling = False
    assert torch.equal(torch.cat(chunks, dim=2), whole)
    assert len(chunks) > 1 or frames <= 13


def test_trimmed_text_is_close_and_says_so(tiny_distill: Path, pair: Any) -> None:
    from yellowsound.recipe import Recipe

    engine, _ = pair("distill", "float32")
    size = {"height": 48, "width": 32, "num_frames": 5, "num_inference_steps": 2, "seed": SEED}
    exact = engine.generate(ClipRequest(prompt=PROMPT, **size))
    trimmed = Engine.load(tiny_distill, device="cpu", recipe=Recipe(name="trim", trim_text=True))
    clip = trimmed.generate(ClipRequest(prompt=PROMPT, **size))
    assert clip.metadata["level"] == "reordered"
    assert (clip.latents.video - exact.latents.video).abs().max() < 1e-4


def test_nothing_reaches_the_network(tiny_distill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    clip = Engine.load(tiny_distill, device="cpu").generate(
        ClipRequest(prompt=PROMPT, height=48, width=32, num_frames=5, num_inference_steps=1)
    )
    assert len(clip.frames) == 5


def test_torchvision_is_not_needed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ImportError):
            import torchvision  # type: ignore[import-not-found]  # noqa: F401
