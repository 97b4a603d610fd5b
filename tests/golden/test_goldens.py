"""Reference outputs of diffusers 0.42.1, within their stated tolerances.

The folder holds what the project needs to stand alone; YELLOWSOUND_GOLDENS names a folder with the full set.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from yellowsound.checkpoint import Checkpoint
from yellowsound.engine import Engine
from yellowsound.memory.resident import Models
from yellowsound.request import ClipRequest
from yellowsound.stages.decode import decode_audio, decode_chunks
from yellowsound.stages.denoise import denoise, guided, predict_stock
from yellowsound.stages.latents import Latents, encode_image
from yellowsound.stages.text import TextEmbeds, TextEncoders, encode_prompt

CASES = Path(os.environ.get("YELLOWSOUND_GOLDENS", Path(__file__).parent / "cases"))
INDEX = json.loads((CASES / "index.json").read_text())["cases"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Tensors = dict[str, torch.Tensor]


def of_kind(kind: str) -> Any:
    found = [case for case in INDEX if case["kind"] == kind]
    return pytest.mark.parametrize("case", found, ids=[c["file"].removesuffix(".safetensors") for c in found])


@pytest.fixture(scope="module")
def models(tiny_sft: Path, tiny_distill: Path) -> Any:
    """Loads ``models(flavour, precision)`` once each."""
    torch.set_num_threads(1)
    kept: dict[tuple[str, str], Models] = {}
    folders = {"sft": tiny_sft, "distill": tiny_distill}

    def get(flavour: str, precision: str) -> Models:
        key = (flavour, precision)
        if key not in kept:
            checkpoint = Checkpoint.open(folders[flavour])
            kept[key] = Models(checkpoint, torch.device("cpu"), DTYPES[precision])
        return kept[key]

    return get


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())


def assert_near(found: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    """max |d| <= share * max |ref|."""
    assert found.shape == expected.shape
    assert float((found.double() - expected.double()).abs().max()) <= share * float(expected.abs().max())


def assert_forward(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert relative(found, expected) <= 1e-5
    assert_near(found, expected, 5e-5)


def forward_inputs(tensors: Tensors, dtype: torch.dtype, prefix: str = "in.") -> dict[str, Any]:
    names = ("hidden_states", "encoder_hidden_states", "pooled_projections", "audio_hidden_states")
    inputs: dict[str, Any] = {n: tensors[prefix + n].to(dtype) for n in names if prefix + n in tensors}
    inputs["timestep"] = tensors[prefix + "timestep"]
    for name in ("encoder_attention_mask", "visual_token_type_ids"):
        if prefix + name in tensors:
            inputs[name] = tensors[prefix + name]
    if prefix + "visual_rope_pos.t" in tensors:
        inputs["visual_rope_pos"] = tuple(tensors[f"{prefix}visual_rope_pos.{axis}"] for axis in "thw")
    return inputs


@of_kind("transformer_forward")
@pytest.mark.parametrize("flavour", ["sft", "distill"])
def test_transformer_forward(case: dict[str, Any], flavour: str, models: Any) -> None:
    tensors = load_file(CASES / case["file"])
    for precision, dtype in DTYPES.items():
        with torch.no_grad():
            [out] = predict_stock(models(flavour, precision).transformer, [forward_inputs(tensors, dtype)])
        for part, found in zip(("video", "audio"), out, strict=False):
            expected = tensors[f"out.{flavour}.fp32.{part}"]
            if precision == "fp32":
                assert_forward(found, expected)
            else:
                assert relative(found, expected) <= 1.5 * case["rel_bf16_vs_fp32"][f"{flavour}.{part}"]


@of_kind("transformer_cfg")
def test_guidance(case: dict[str, Any], models: Any) -> None:
    tensors = load_file(CASES / case["file"])
    cond = forward_inputs(tensors, torch.float32, "cond.in.")
    uncond = {**cond, **{k.removeprefix("uncond.in."): v for k, v in tensors.items() if k.startswith("uncond.in.")}}
    with torch.no_grad():
        both = predict_stock(models("sft", "fp32").transformer, [cond, uncond])
    for index, part in enumerate(("video", "audio")):
        assert_forward(both[0][index], tensors[f"out.sft.fp32.cond.{part}"])
        assert_forward(both[1][index], tensors[f"out.sft.fp32.uncond.{part}"])
        assert_forward(guided(both, 5.0)[index], tensors[f"out.sft.fp32.cfg5.{part}"])


@of_kind("transformer_intermediates")
def test_intermediates(case: dict[str, Any], models: Any) -> None:
    expected = load_file(CASES / case["file"])
    inputs = forward_inputs(load_file(CASES / case["inputs_from"]), torch.float32)
    transformer, seen = models("sft", "fp32").transformer, {}

    def keep(name: str) -> Any:
        return lambda _module, _args, out: seen.__setitem__(name, out)

    modules = dict(transformer.named_modules())
    hooks = [m.register_forward_hook(keep(n)) for n, m in modules.items()]
    with torch.no_grad():
        transformer(**inputs, return_dict=False)
    for hook in hooks:
        hook.remove()
    compared = 0
    for name, value in expected.items():
        stem, _, part = name.rpartition(".")
        found = seen.get(name)
        if found is None and isinstance(seen.get(stem), tuple):
            found = seen[stem][{"video": 0, "audio": 1, "vis": 0, "aud": 1, "0": 0, "1": 1}.get(part, 0)]
        if isinstance(found, torch.Tensor) and found.shape == value.shape:
            assert_forward(found, value)
            compared += 1
    assert compared >= 20


@of_kind("piflow_scheduler")
def test_piflow(case: dict[str, Any]) -> None:
    from diffusers import PiflowScheduler

    tensors = load_file(CASES / case["file"])
    for part in ("video", "audio"):
        scheduler = PiflowScheduler(**case["config"])
        scheduler.set_timesteps(case["steps"])
        assert_near(scheduler.timesteps, tensors["timesteps"], 1e-6)
        for step, timestep in enumerate(scheduler.timesteps):
            x, output = tensors[f"{part}.x.{step}"], tensors[f"{part}.model_output.{step}"]
            found = scheduler.step(output, timestep, x, return_dict=False)[0]
            assert_near(found, tensors[f"{part}.x.{step + 1}"], 1e-4 if x.dtype == torch.float32 else 2**-7)


@of_kind("flowmatch_euler_scheduler")
def test_euler(case: dict[str, Any]) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    tensors = load_file(CASES / case["file"])
    scheduler = FlowMatchEulerDiscreteScheduler(**case["config"])
    scheduler.set_timesteps(case["steps"])
    assert_near(scheduler.sigmas, tensors["sigmas"], 1e-6)
    for step, timestep in enumerate(scheduler.timesteps):
        found = scheduler.step(tensors[f"model_output.{step}"], timestep, tensors[f"x.{step}"], return_dict=False)[0]
        assert_near(found, tensors[f"x.{step + 1}"], 1e-5)


@of_kind("video_vae")
def test_video_vae(case: dict[str, Any], models: Any) -> None:
    tensors = load_file(CASES / case["file"])
    vae = models(case["flavour"], "fp32").vae
    for kind in ("plain", "temporal_tiled"):
        if f"{kind}.z_bcthw" in tensors:
            with torch.no_grad():
                found = torch.cat(list(decode_chunks(tensors[f"{kind}.z_bcthw"], vae)), dim=2)
            assert float((found - tensors[f"{kind}.video_bcthw"]).abs().max()) <= 1e-3
    with torch.no_grad():
        posterior = vae.encode(tensors["encode.x_bcthw"]).latent_dist
    assert float((posterior.mean - tensors["encode.mean_bcthw"]).abs().max()) <= 1e-3
    sample = posterior.sample(torch.Generator().manual_seed(7))
    assert float((sample - tensors["encode.sample_seed7_bcthw"]).abs().max()) <= 1e-3
    if "spatial_tiled.z_bcthw" in tensors:
        check_spatial_tiles(tensors, vae)


def check_spatial_tiles(tensors: Tensors, vae: Any) -> None:
    names = [f"tile_sample_{what}_{side}" for what in ("min", "stride") for side in ("height", "width")]
    before = {name: getattr(vae, name) for name in names}
    vae.enable_tiling(64, 64, None, 48, 48)
    with torch.no_grad():
        found = torch.cat(list(decode_chunks(tensors["spatial_tiled.z_bcthw"], vae, "tiled")), dim=2)
    for name, value in before.items():
        setattr(vae, name, value)
    assert float((found - tensors["spatial_tiled.video_bcthw"].float()).abs().max()) <= 3e-3


@of_kind("audio_vae_vocoder")
def test_audio(case: dict[str, Any], models: Any) -> None:
    tensors = load_file(CASES / case["file"])
    m = models(case["flavour"], "fp32")
    for length in ("L17", "L5"):
        latents = tensors[f"{length}.z_bcl"].permute(0, 2, 1) * m.audio_vae.config.scaling_factor
        with torch.no_grad():
            found = torch.from_numpy(decode_audio(latents, m.audio_vae, m.vocoder))
        assert_near(found, tensors[f"{length}.waveform"][:, 0], 1e-4)


@of_kind("pipeline_trajectory")
def test_trajectory(case: dict[str, Any], models: Any) -> None:
    tensors = load_file(CASES / case["file"])
    m, dtype = models(case["flavour"], case["precision"]), DTYPES[case["precision"]]
    texts = [
        TextEmbeds(tensors[f"in.{branch}prompt_embeds"].to(dtype), tensors[f"in.{pooled}"].to(dtype), None)
        for branch, pooled in (("", "pooled_prompt_embeds"), ("negative_", "negative_pooled_prompt_embeds"))
        if f"in.{branch}prompt_embeds" in tensors
    ]
    video = tensors["in.latents_bcthw"].to(dtype).permute(0, 2, 3, 4, 1)
    audio, first_frame = tensors["in.audio_latents_bcl"].to(dtype).permute(0, 2, 1), None
    with torch.no_grad():
        if "in.image_rgb_hwc_u8" in tensors:
            request = ClipRequest(prompt="x", height=case["height"], width=case["width"])
            picture = Image.fromarray(tensors["in.image_rgb_hwc_u8"].numpy())
            generator = torch.Generator().manual_seed(case["image_generator_seed"])
            first_frame = encode_image(picture, m.vae, request, dtype, generator)
            video = torch.cat([video, first_frame[:, None]], dim=1)
        noise = Latents(video, audio, first_frame)
        found = denoise(m.transformer, m.scheduler, noise, texts, case["guidance_scale"], case["steps"])
    video, sound = found.video.permute(0, 4, 1, 2, 3), found.audio.permute(0, 2, 1)
    if case["precision"] == "fp32":
        assert_near(video, tensors["out.latents_bcthw"], 1e-3)
        assert_near(sound, tensors["out.audio_latents_bcl"], 1e-3)
    else:
        exact = load_file(CASES / case["file"].replace("bf16", "fp32"))
        assert relative(video, exact["out.latents_bcthw"]) <= 2 * case["rel_bf16_vs_fp32"]["latents"]
        assert relative(sound, exact["out.audio_latents_bcl"]) <= 2 * case["rel_bf16_vs_fp32"]["audio"]


@of_kind("text_encoding")
def test_text(case: dict[str, Any], models: Any) -> None:
    tensors, prompts = load_file(CASES / case["file"]), json.loads((CASES / case["ids"]).read_text())["prompts"]
    m = models("sft", "fp32")
    encoders = TextEncoders(m.tokenizer, m.qwen, m.clip_tokenizer, m.clip)
    for index, prompt in enumerate(prompts):
        text = prompt["prompt"] if isinstance(prompt, dict) else prompt
        with torch.no_grad():
            found = encode_prompt(text, encoders, m.device)
        valid = found.tokens[0] if found.mask is None else found.tokens[0][found.mask[0]]
        stored = tensors[f"{index}.prompt_embeds_valid"]
        if len(valid) != len(stored):
            valid = torch.cat([valid[:64], valid[-64:]])
        assert_near(valid, stored, 2e-4)
        assert_near(found.pooled[0], tensors[f"{index}.pooled"], 2e-4)


@of_kind("end_to_end")
def test_end_to_end(case: dict[str, Any], tiny_sft: Path, tiny_distill: Path) -> None:
    tensors = load_file(CASES / case["file"])
    engine = Engine.load({"sft": tiny_sft, "distill": tiny_distill}[case["flavour"]], device="cpu", dtype="float32")
    clip = engine.generate(ClipRequest(seed=case["generator_seed"], **case["kwargs"]))
    assert_near(clip.latents.video.permute(0, 4, 1, 2, 3), tensors["latents_bcthw"], 2e-3)
    assert_near(clip.latents.audio.permute(0, 2, 1), tensors["audio_latents_bcl"], 2e-3)
    difference = np.abs(clip.frames.astype(int) - tensors["frames_u8_btHWc"][0].numpy().astype(int))
    assert difference.max() <= 2
