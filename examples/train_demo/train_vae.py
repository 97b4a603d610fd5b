"""Stage a: the video autoencoder, trained exactly as it is used: tiles of 17 frames in, windows of 5 latents out.

The pipeline encodes and decodes in overlapping time tiles. So a training clip is 29 frames long: two tiles are encoded,
their latents joined as ``AutoencoderKLHunyuanVideo`` joins them, and two windows decoded.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import parts
import render
import torch
from diffusers import AutoencoderKLHunyuanVideo
from progress import Budget, Half, Log, Step, clip, learning_rate, optimizer, prepare, set_rate
from torch import Tensor
from torch.nn import functional

CLIP_FRAMES, TILE, STRIDE = 29, 17, 12
PEAK_RATE, KL_WEIGHT, OBJECT_WEIGHT = 1e-3, 3e-4, 8.0


def train(
    work: Path, seconds: float, device: str, *, batch: int = 4, crop: tuple[int, int] = (64, 96), freeze: float = 0.8,
    whole: bool = True,
) -> None:  # fmt: skip
    """Train for ``seconds`` from the weights in ``work`` and write them back; log to ``work/logs``.

    Mostly on cut-outs around the object, then on whole pictures. After ``freeze`` of the time the encoder is
    standardised, frozen and marked ready, so that latents can be made while the decoder goes on learning, then with
    some noise on its input. ``whole=False`` keeps to cut-outs, for a smoke run.
    """
    prepare(device)
    folder, log, budget = work / "common" / "vae", Log(work / "logs", "vae"), Budget(seconds)
    vae = parts.load(AutoencoderKLHunyuanVideo, folder, device)
    half = Half(vae)
    optimiser, steps, count, frozen = optimizer(vae, PEAK_RATE), {}, 0, False
    while not budget.is_spent:
        if budget.part >= freeze and not frozen:
            _finish_encoder(vae, half, folder, device)
            frozen = True
        set_rate(optimiser, learning_rate(budget.part, PEAK_RATE))
        cut = crop if budget.part < 0.65 * freeze or not whole else render.WHOLE[2:]
        inputs = _clips(batch if cut == crop else max(batch // 2, 1), device, cut, half.dtype)
        if (cut, frozen) not in steps:
            chosen = functools.partial(_losses, half.model, frozen)
            steps[cut, frozen] = Step(chosen, half.halves, inputs)
        step = steps[cut, frozen]
        losses = step(*inputs)
        half.give_gradients(step.gradients)
        clip(vae)
        optimiser.step()
        half.take_weights()
        count += 1
        if log.is_due() or count == 1:
            log.write(step=count, picture=losses[0], kl=losses[1] / KL_WEIGHT)
    if not frozen:
        _finish_encoder(vae, half, folder, device)
    parts.save(vae, folder, ready=True)
    log.write(step=count, done=True)


def _finish_encoder(vae: AutoencoderKLHunyuanVideo, half: Half, folder: Path, device: str) -> None:
    standardise(vae, device)
    half.take_weights()
    parts.save(vae, folder, ready=True)


@torch.no_grad()
def _clips(batch: int, device: str, cut: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random clips of CLIP_FRAMES frames, (B, 3, T, h, w), and the weights of their pixels."""
    start = int(torch.randint(0, 21, ()))
    scenes = render.random_batch(batch, device)
    window = render.around(scenes, start + CLIP_FRAMES / 2, *cut)
    video, cover = render.paint(scenes, torch.arange(start, start + CLIP_FRAMES), window)
    return video.to(dtype), 1 + OBJECT_WEIGHT * functional.max_pool3d(cover, (1, 5, 5), 1, (0, 2, 2)).to(dtype)


def _losses(vae: Any, frozen: bool, video: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted L1 of the pictures, and the latents' mean KL times its weight."""
    tiles = torch.cat([video[:, :, :TILE], video[:, :, STRIDE : STRIDE + TILE]])
    with torch.set_grad_enabled(not frozen):
        mean, log_variance = vae.quant_conv(vae.encoder(tiles)).float().chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    if frozen:
        latents = latents + 0.05 * torch.randn_like(mean)
    first, second = latents.to(video.dtype).chunk(2)
    joined = torch.cat([first, second[:, :, 2:]], dim=2)
    windows = torch.cat([joined[:, :, 0:5], joined[:, :, 3:8]])
    early, late = vae.decoder(vae.post_quant_conv(windows)).float().chunk(2)
    error = (early - video[:, :, :TILE]).abs() * weight[:, :, :TILE]
    later = (late[:, :, 1:] - video[:, :, TILE - 4 :]).abs() * weight[:, :, TILE - 4 :]
    return (error.mean() + later.mean()) / 2, KL_WEIGHT * kl


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
    out.bias[count:] += 2 * scale.log()
