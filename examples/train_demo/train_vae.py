"""Stage a: the video autoencoder, trained exactly as it is used: tiles of 17 frames in, windows of 5 latents out.

The pipeline encodes and decodes in overlapping time tiles. So a training clip is 29 frames long: two tiles are encoded,
their latents joined as ``AutoencoderKLHunyuanVideo`` joins them, and two windows decoded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parts
import render
import torch
from diffusers import AutoencoderKLHunyuanVideo
from progress import Budget, Half, Log, learning_rate, optimizer, prepare, set_rate
from torch import Tensor
from torch.nn import functional

CLIP_FRAMES, TILE, STRIDE = 29, 17, 12
PEAK_RATE, KL_WEIGHT, OBJECT_WEIGHT = 2e-3, 3e-4, 8.0


def train(
    work: Path, seconds: float, device: str, *, batch: int = 4, crop: tuple[int, int] = (64, 96), freeze: float = 0.75,
    whole: bool = True,
) -> None:  # fmt: skip
    """Train for ``seconds`` from the weights in ``work`` and write them back; log to ``work/logs``.

    For half of the time on cut-outs around the object, then on whole pictures. After ``freeze`` of the time the encoder
    is standardised, frozen and marked ready, so that latents can be made while the decoder goes on learning, then with
    some noise on its input. ``whole=False`` keeps to cut-outs, for a smoke run.
    """
    prepare(device)
    folder, log, budget = work / "common" / "vae", Log(work / "logs", "vae"), Budget(seconds)
    vae = parts.load(AutoencoderKLHunyuanVideo, folder, device)
    half = Half(vae) if device == "cuda" else None
    network = half.model if half else vae
    optimiser, step, frozen = optimizer(vae, PEAK_RATE), 0, False
    while not budget.is_spent:
        if budget.part >= freeze and not frozen:
            _finish_encoder(vae, half, folder, device)
            frozen = True
        set_rate(optimiser, learning_rate(budget.part, PEAK_RATE))
        cut = crop if budget.part < 0.5 * freeze or not whole else render.WHOLE[2:]
        losses = _losses(network, 4 * batch if cut == crop and whole else batch, device, cut, frozen)
        optimiser.zero_grad(set_to_none=True)
        (losses["picture"] + KL_WEIGHT * losses["kl"] * (not frozen)).backward()
        if half:
            half.give_gradients()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        if half:
            half.take_weights()
        step += 1
        if log.is_due() or step == 1:
            log.write(step=step, **losses)
    if not frozen:
        _finish_encoder(vae, half, folder, device)
    parts.save(vae, folder, ready=True)
    log.write(step=step, done=True)


def _finish_encoder(vae: AutoencoderKLHunyuanVideo, half: Half | None, folder: Path, device: str) -> None:
    standardise(vae, device)
    if half:
        half.take_weights()
    parts.save(vae, folder, ready=True)


def _losses(vae: Any, batch: int, device: str, cut: tuple[int, int], frozen: bool) -> dict[str, Tensor]:
    """Weighted L1 of the pictures and the mean KL of the latents, for ``batch`` random clips."""
    start = int(torch.randint(0, 21, ()))
    with torch.no_grad():
        scenes = render.random_batch(batch, device)
        window = render.around(scenes, start + CLIP_FRAMES / 2, *cut)
        video, cover = render.paint(scenes, torch.arange(start, start + CLIP_FRAMES), window)
        tiles = torch.cat([video[:, :, :TILE], video[:, :, STRIDE : STRIDE + TILE]]).to(vae.dtype)
        weight = 1 + OBJECT_WEIGHT * functional.max_pool3d(cover, (1, 5, 5), 1, (0, 2, 2))
    with torch.set_grad_enabled(not frozen):
        mean, log_variance = vae.quant_conv(vae.encoder(tiles)).float().chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    if frozen:
        latents = latents + 0.05 * torch.randn_like(mean)
    first, second = latents.to(vae.dtype).chunk(2)
    joined = torch.cat([first, second[:, :, 2:]], dim=2)
    windows = torch.cat([joined[:, :, 0:5], joined[:, :, 3:8]])
    early, late = vae.decoder(vae.post_quant_conv(windows)).float().chunk(2)
    error = (early - video[:, :, :TILE]).abs() * weight[:, :, :TILE]
    later = (late[:, :, 1:] - video[:, :, TILE - 4 :]).abs() * weight[:, :, TILE - 4 :]
    return {"picture": (error.mean() + later.mean()) / 2, "kl": kl}


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
