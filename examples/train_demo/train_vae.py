"""Stage a: the video autoencoder, trained as it is used: tiles of 17 frames in, windows of 5 latents out.

The pipeline encodes and decodes in overlapping time tiles. The first latent of a tile stands for one frame, any other
for four; the first latent of a later window is one of the others. So half of the steps decode a tile from its first
latent, the other half from its second, where the frame of that latent is not looked at.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import build
import parts
import render
import torch
from diffusers import AutoencoderKLHunyuanVideo
from progress import Average, Budget, Half, Keeper, Log, Step, clip, learning_rate, prepare, set_rate
from torch import Tensor
from torch.nn import functional

from yellowsound.demo.world import NUM_FRAMES

TILE = 17
PHASES = ((0.15, 1), (1.0, TILE))
PEAK_RATE, SIZE_WEIGHT, NOISE, OBJECT_WEIGHT = 3e-4, 3e-4, 0.1, 4.0
USUAL_INPUTS = 432  # of the convolutions at full size, 27 x 16


def train(
    work: Path, seconds: float, device: str, *, batch: int = 4, crop: tuple[int, int] = (64, 96), freeze: float = 0.6,
    whole_from: float = 0.35, peak: float = PEAK_RATE, phases: tuple[tuple[float, int], ...] = PHASES,
    decoder_only: bool = False,
) -> None:  # fmt: skip
    """Train for ``seconds`` from the weights in ``work``; write the averaged ones back; log to ``work/logs``.

    Cut-outs of ``crop`` pixels come first; after ``whole_from`` of the time whole pictures, since what a norm subtracts
    depends on the whole picture. ``phases``: up to which part of the time clips have how many frames; still pictures
    are cheap and teach colours and shapes. After ``freeze`` of the time the encoder is standardised, frozen and marked
    ready, so that latents can be made while the decoder goes on learning. ``decoder_only``: it was frozen before, so
    latents made earlier stay valid.
    """
    prepare(device)
    log = Log(work / "logs", "decoder" if decoder_only else "vae")
    folder, budget = work / "common" / "vae", Budget(seconds)
    vae = parts.load(AutoencoderKLHunyuanVideo, folder, device)
    half, average = Half(vae), Average(vae, horizon=300)
    masks = {still: build.constant_masks(vae, still=still) for still in (False, True)}
    keeper, steps = Keeper(budget), dict[Any, Step]()
    optimiser, count, frozen = by_fan_in(vae, peak), 0, decoder_only
    while budget.goes_on():
        if budget.part >= freeze and not frozen:
            average = _finish_encoder(vae, average, half, folder, device)
            frozen = True
        set_rate(optimiser, learning_rate(budget.part, peak))
        frames = next((frames for part, frames in phases if budget.part < part), TILE)
        cut = crop if budget.part < whole_from else render.WHOLE[2:]
        inputs = clips(_number(batch, frames, cut != crop), device, cut, half.dtype, frames)
        key = (frames > 1 and count % 2 == 1, frozen, frames, cut)
        if key not in steps:
            steps[key] = Step(functools.partial(_losses, half.model, *key[:2]), half.halves, inputs)
        losses = steps[key](*inputs)
        half.give_gradients(steps[key].gradients)
        clip(vae)
        optimiser.step()
        keep_constants(masks[frames == 1])
        half.take_weights()
        average.update()
        count += 1
        if log.is_due() or count == 1:
            log.write(step=count, frames=frames, picture=losses[0], size=losses[1] / SIZE_WEIGHT)
        keeper.keep(vae, average, folder)
    if not frozen:
        average = _finish_encoder(vae, average, half, folder, device)
    average.swap()
    parts.save(vae, folder, ready=True)
    log.write(step=count, done=True)


def _number(batch: int, frames: int, whole: bool) -> int:
    """How many clips a step takes: more of short ones, half as many whole ones."""
    return max(batch * min(TILE // frames, 4) // (2 if whole else 1), 1)


def _finish_encoder(vae: Any, average: Average, half: Half, folder: Path, device: str) -> Average:
    """Standardise the averaged weights, go on from them, and mark the encoder ready; returns a new average."""
    average.swap()
    standardise(vae, device)
    half.take_weights()
    parts.save(vae, folder, ready=True)
    return Average(vae, average.horizon)


def by_fan_in(vae: Any, peak: float) -> torch.optim.AdamW:
    """AdamW whose rate falls with a weight's number of inputs: neighbouring pixels agree, so the steps add up."""
    rates: dict[float, list[torch.nn.Parameter]] = {}
    for parameter in vae.parameters():
        inputs = parameter[0].numel() if parameter.ndim > 1 else USUAL_INPUTS
        rates.setdefault(min(USUAL_INPUTS / inputs, 2.0), []).append(parameter)
    groups = [{"params": params, "factor": factor} for factor, params in rates.items()]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), weight_decay=0.0, fused=next(vae.parameters()).is_cuda)


@torch.no_grad()
def keep_constants(masks: list[tuple[torch.nn.Parameter, Tensor]]) -> None:
    torch._foreach_mul_([p for p, _ in masks], [m for _, m in masks])


@torch.no_grad()
def clips(
    batch: int, device: str, cut: tuple[int, int], dtype: torch.dtype, frames: int = TILE
) -> tuple[Tensor, Tensor]:
    """Random clips of so many frames, (B, 3, T, h, w), and the weights of their pixels."""
    start = int(torch.randint(0, NUM_FRAMES - frames + 1, ()))
    scenes = render.random_batch(batch, device)
    window = render.around(scenes, start + frames / 2, *cut)
    video, cover = render.paint(scenes, torch.arange(start, start + frames), window)
    return video.to(dtype), 1 + OBJECT_WEIGHT * functional.max_pool3d(cover, (1, 5, 5), 1, (0, 2, 2)).to(dtype)


def _losses(vae: Any, late: bool, frozen: bool, video: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted L1 of the pictures, and the mean square of the latents times its weight."""
    with torch.set_grad_enabled(not frozen):
        latents = vae.quant_conv(vae.encoder(video)).float().chunk(2, dim=1)[0]
    size = latents.square().mean()
    noisy = latents + NOISE * torch.randn_like(latents)
    made = vae.decoder(vae.post_quant_conv(noisy[:, :, int(late) :].to(video.dtype))).float()
    first = 5 if late else 0
    error = (made[:, :, int(late) :] - video[:, :, first:]).abs() * weight[:, :, first:]
    return error.mean() / weight.mean(), SIZE_WEIGHT * size


@torch.no_grad()
def standardise(vae: AutoencoderKLHunyuanVideo, device: str) -> None:
    """Fold mean and spread of each latent channel into the 1x1x1 convolutions: latents become 0 +- 1, scaling 1.

    Channels that carry nothing (spread under 0.2) are only centred.
    """
    means, squares = [], []
    for _ in range(8 if device == "cuda" else 1):
        clip = render.draw(render.random_batch(4, device), torch.arange(TILE), (40, 48, 64, 96))
        mean = vae.quant_conv(vae.encoder(clip)).chunk(2, dim=1)[0]
        means.append(mean.mean((0, 2, 3, 4)))
        squares.append(mean.square().mean((0, 2, 3, 4)))
    centre = torch.stack(means).mean(0)
    spread = (torch.stack(squares).mean(0) - centre.square()).clamp(min=0).sqrt()
    scale = torch.where(spread < 0.2, 1.0, 1 / spread.clamp(min=1e-6))
    out, back, count = vae.quant_conv, vae.post_quant_conv, len(centre)
    back.bias += (back.weight[:, :, 0, 0, 0] * centre).sum(1)
    back.weight /= scale.view(1, -1, 1, 1, 1)
    out.weight[:count] *= scale.view(-1, 1, 1, 1, 1)
    out.bias[:count] = (out.bias[:count] - centre) * scale
