"""Makes clips for the frozen test prompts with the weights in a work folder and lets the judge score them.

The sampler is the pipeline's loop with diffusers' own schedulers, for many prompts at once.
"""

from __future__ import annotations

import copy
import functools
import json
import multiprocessing
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import parts
import render
import torch
from denoiser import guided
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    Kandinsky6Transformer3DModel,
    MMAudioVAE,
    MMAudioVocoder,
    PiflowScheduler,
)
from latents import NEGATIVE, Encoder, Text, TextEncoders
from PIL import Image, ImageDraw
from progress import autocast
from torch import Tensor

from yellowsound.demo.judge import judge
from yellowsound.demo.world import SAMPLE_RATE, Prompt, held_out_prompts, sample_chance, sample_image_prompt

STEPS = {"flow": 20, "piflow": 10}


@dataclass
class Clips:
    """Made clips: frames uint8 (N, F, H, W, 3), waveforms float32 (N, samples)."""

    frames: np.ndarray[Any, np.dtype[np.uint8]]
    waves: np.ndarray[Any, np.dtype[np.float32]]


class Maker:
    """The whole checkpoint of one flavour, from prompts to clips in batches."""

    def __init__(self, work: Path, flavour: str, device: str) -> None:
        common = work / "common"
        self.flavour, self.device, self.text = flavour, device, TextEncoders(work, device)
        self.model = parts.load(Kandinsky6Transformer3DModel, work / flavour / "transformer", device).eval()
        self.vae = parts.load(AutoencoderKLHunyuanVideo, common / "vae", device).eval()
        self.audio_vae = parts.load(MMAudioVAE, common / "audio_vae", device).eval()
        self.vocoder = parts.load(MMAudioVocoder, common / "vocoder", device).eval()
        kind: Any = PiflowScheduler if flavour == "piflow" else FlowMatchEulerDiscreteScheduler
        self.scheduler = kind.from_pretrained(work / flavour / "scheduler")
        self.encoder = Encoder(work, device)
        self.empty = self.text([NEGATIVE])

    @torch.no_grad()
    def __call__(
        self, prompts: list[str], seed: int, guidance: float, image: Tensor | None = None, steps: int | None = None
    ) -> Clips:
        """Clips for ``prompts``; ``image``: latents (N, 16, 24, 16) of the pictures they start from."""
        generator = torch.Generator().manual_seed(seed)
        video = torch.randn(len(prompts), 13, 16, 24, 16, generator=generator).to(self.device)
        audio = torch.randn(len(prompts), 88, 40, generator=generator).to(self.device)
        video, audio = self._denoise(video, audio, image, self.text(prompts), guidance, steps or STEPS[self.flavour])
        return self._decode(video, audio)

    def _denoise(
        self, video: Tensor, audio: Tensor, image: Tensor | None, text: Text, guidance: float, steps: int
    ) -> tuple[Tensor, Tensor]:
        scheduler = copy.deepcopy(self.scheduler)
        scheduler.set_timesteps(steps, device=self.device)
        beside = copy.deepcopy(scheduler)
        for time in scheduler.timesteps:
            sigma = (time / 1000).expand(len(video))
            with autocast(self.device):
                seen, heard = guided(self.model, video, audio, image, sigma, text, self.empty, guidance)
            video = scheduler.step(seen, time, video, return_dict=False)[0]
            audio = beside.step(heard, time, audio, return_dict=False)[0]
        return video, audio

    @torch.no_grad()
    def _decode(self, video: Tensor, audio: Tensor, chunk: int = 10) -> Clips:
        frames, waves = [], []
        for i in range(0, len(video), chunk):
            latents = video[i : i + chunk].permute(0, 4, 1, 2, 3) / self.vae.config.scaling_factor
            with autocast(self.device):
                pixels = self.vae.decode(latents).sample
            frames.append(((pixels.float() / 2 + 0.5).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 4, 1).cpu())
            mel = self.audio_vae.decode(audio[i : i + chunk].permute(0, 2, 1) / self.audio_vae.config.scaling_factor)
            waves.append(self.vocoder(mel.sample).sample[:, 0].float().cpu())
        return Clips(torch.cat(frames).numpy(), torch.cat(waves).numpy())


def evaluate(work: Path, flavour: str, device: str, scales: list[float], number: int = 100) -> dict[str, Any]:
    """Per cent of the test prompts that pass each question; from text, from a picture, and how two seeds differ.

    Of several guidance ``scales`` the one that passes most prompts whole is taken; the others are listed.
    """
    maker, prompts = Maker(work, flavour, device), held_out_prompts(number)
    tried: dict[float, dict[str, float]] = {}
    clips: dict[float, Clips] = {}
    for scale in scales:
        clips[scale] = maker([p.text for p in prompts], 0, scale)
        tried[scale] = score(prompts, clips[scale], work / f"answers_{flavour}_{scale}.json")
        print(flavour, scale, tried[scale], flush=True)
    guidance = max(scales, key=lambda scale: sum(tried[scale].values()))
    few = [p.text for p in prompts[:8]]
    one, again, other = (maker(few, seed, guidance) for seed in (5, 5, 6))
    shown, latents = image_prompts(maker, prompts)
    moved = maker([p.text for p in shown], 1, guidance, image=latents)
    changed = np.abs(one.frames.astype(float) - other.frames).mean((1, 2, 3, 4))
    sheet(work / f"sheet_{flavour}.png", prompts, clips[guidance])
    sheet(work / f"sheet_{flavour}_image.png", shown, moved)
    return {
        "guidance": guidance, "steps": STEPS[flavour], "prompts": number,
        "tried": {str(k): v for k, v in tried.items()},
        "text": tried[guidance], "image": score(shown, moved, work / f"answers_{flavour}_image.json"),
        "same_seed_repeats": bool((one.frames == again.frames).all() and (one.waves == again.waves).all()),
        "least_difference_of_two_seeds": round(float(changed.min()), 3),
    }  # fmt: skip


def reconstruct(work: Path, device: str, number: int = 100, seed: int = 4) -> dict[str, float]:
    """The score of real clips of the world after both autoencoders and the vocoder: what no model can exceed."""
    maker, prompts = Maker(work, "flow", device), held_out_prompts(number)
    rng, latents = np.random.default_rng(seed), []
    scenes = render.batch_of([p.scene for p in prompts], [sample_chance(rng) for _ in prompts]).to(device)
    for i in range(0, number, 10):
        latents.append(maker.encoder(scenes[i : i + 10]))
    video, audio = (torch.cat([part[i] for part in latents]) for i in (0, 1))
    clips = maker._decode(video, audio)
    sheet(work / "sheet_reconstruction.png", prompts, clips)
    return score(prompts, clips)


def image_prompts(maker: Maker, prompts: list[Prompt], seed: int = 3) -> tuple[list[Prompt], Tensor]:
    """For the scenes of ``prompts``: wordings for a clip from a picture, and the latents of such pictures."""
    rng = np.random.default_rng(seed)
    shown = [sample_image_prompt(rng, p.scene) for p in prompts]
    batch = render.batch_of([p.scene for p in prompts], [sample_chance(rng) for _ in prompts]).to(maker.device)
    return shown, maker.encoder.image(batch)


@functools.cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(min(os.cpu_count() or 1, 14), multiprocessing.get_context("spawn"))


def score(prompts: list[Prompt], clips: Clips, file: Path | None = None) -> dict[str, float]:
    """Per cent of the applicable prompts that pass, by question; each clip's own answers go to ``file``."""
    given = answers(prompts, clips)
    if file:
        rows = [{"text": p.text, **asdict(p.scene), "answers": a} for p, a in zip(prompts, given, strict=True)]
        file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return rates(given)


def answers(prompts: list[Prompt], clips: Clips) -> list[dict[str, bool]]:
    """The judge's answers for each clip, by all cores."""
    jobs = [(p, f, w, SAMPLE_RATE) for p, f, w in zip(prompts, clips.frames, clips.waves, strict=True)]
    judged = _pool().map(judge, *zip(*jobs, strict=True), chunksize=4)
    return [{question: bool(right) for question, right in given.items()} for given in judged]


def rates(answers: list[dict[str, bool]]) -> dict[str, float]:
    """Per cent that pass of the prompts a question applies to; ``all``: every question of a prompt."""
    passed: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        for question, right in answer.items():
            passed[question].append(right)
        passed["all"].append(all(answer.values()))
    return {question: round(100 * float(np.mean(rights)), 1) for question, rights in sorted(passed.items())}


def sheet(path: Path, prompts: list[Prompt], clips: Clips, rows: int = 24, columns: int = 8) -> None:
    """A contact sheet: a row a clip with its prompt and, under the frames, the outline of its sound."""
    step, scale = (clips.frames.shape[1] - 1) // (columns - 1), 2
    thumbs = clips.frames[:rows, ::step][:, :columns, ::scale, ::scale]
    count, _, high, wide, _ = thumbs.shape
    page = Image.new("RGB", (columns * wide, count * (high + 34)), "white")
    draw = ImageDraw.Draw(page)
    for row in range(count):
        top = row * (high + 34)
        draw.text((2, top), prompts[row].text, fill="black")
        for column in range(columns):
            page.paste(Image.fromarray(thumbs[row, column]), (column * wide, top + 12))
        wave = np.abs(clips.waves[row])
        bins = wave[: len(wave) // (columns * wide) * columns * wide].reshape(columns * wide, -1).max(1)
        for x, loud in enumerate(bins):
            draw.line((x, top + 12 + high + 20, x, top + 12 + high + 20 - int(20 * min(loud, 1.0))), fill=(60, 60, 60))
    page.save(path)
