"""Stage a: the video autoencoder, trained exactly as it is used: tiles of 17 frames in, windows of 5 latents out.

The pipeline encodes and decodes in overlapping time tiles. So a training clip is 29 frames long: two tiles are encoded,
their latents joined as ``AutoencoderKLHunyuanVideo`` joins them, and two windows decoded.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import parts
import render
import torch
from diffusers import AutoencoderKLHunyuanVideo
from diffusers.models.autoencoders import autoencoder_kl_hunyuan_video as stock
from progress import Budget, Log, autocast, compiled, learning_rate, optimizer, prepare, set_rate
from torch import Tensor
from torch.nn import functional

CLIP_FRAMES, TILE, STRIDE = 29, 17, 12
PEAK_RATE, KL_WEIGHT, OBJECT_WEIGHT = 2e-3, 3e-4, 8.0


def train(
    work: Path, seconds: float, device: str, *, batch: int = 16, decoder_only_from: float = 0.75,
    window: render.Window = render.WHOLE,
) -> None:  # fmt: skip
    """Train for ``seconds`` from the weights in ``work`` and write them back; log to ``work/logs``.

    After ``decoder_only_from`` of the time the encoder is standardised, frozen and marked ready, so that latents can be
    made while the decoder goes on learning, then with some noise on its input.
    """
    prepare(device)
    _pad_by_joining()
    folder, log, budget = work / "common" / "vae", Log(work / "logs", "vae"), Budget(seconds)
    vae = parts.load(AutoencoderKLHunyuanVideo, folder, device)
    encode = compiled(lambda x: vae.quant_conv(vae.encoder(x)), device)
    decode = compiled(lambda z: vae.decoder(vae.post_quant_conv(z)), device)
    optimiser, step, frozen = optimizer(vae, PEAK_RATE), 0, False
    while not budget.is_spent:
        if budget.part >= decoder_only_from and not frozen:
            standardise(vae, device, window)
            parts.save(vae, folder, ready=True)
            frozen = True
        set_rate(optimiser, learning_rate(budget.part, PEAK_RATE))
        losses = _losses(encode, decode, batch, device, frozen, window)
        optimiser.zero_grad(set_to_none=True)
        (losses["picture"] + KL_WEIGHT * losses["kl"] * (not frozen)).backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        step += 1
        if log.is_due() or step == 1:
            log.write(step=step, **losses)
    if not frozen:
        standardise(vae, device, window)
    parts.save(vae, folder, ready=True)
    log.write(step=step, done=True)


def _losses(
    encode: Any, decode: Any, batch: int, device: str, frozen: bool, window: render.Window
) -> dict[str, Tensor]:
    """Weighted L1 of the pictures and the mean KL of the latents, for ``batch`` random clips."""
    start = int(torch.randint(0, 21, ()))
    with torch.no_grad():
        video, cover = render.paint(
            render.random_batch(batch, device), torch.arange(start, start + CLIP_FRAMES), window
        )
        tiles = torch.cat([video[:, :, :TILE], video[:, :, STRIDE : STRIDE + TILE]])
        weight = 1 + OBJECT_WEIGHT * functional.max_pool3d(cover, (1, 5, 5), 1, (0, 2, 2))
    with autocast(device):
        mean, log_variance = encode(tiles).float().chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        noise = torch.randn_like(mean)
        latents = mean + noise * (0.5 * log_variance).exp()
        if frozen:  # the same compiled graph, but no gradient reaches the encoder
            latents = latents.detach() + 0.05 * torch.randn_like(mean)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    first, second = latents.chunk(2)
    joined = torch.cat([first, second[:, :, 2:]], dim=2)
    windows = torch.cat([joined[:, :, 0:5], joined[:, :, 3:8]])
    with autocast(device):
        pictures = decode(windows).float()
    early, late = pictures.chunk(2)
    error = (early - video[:, :, :TILE]).abs() * weight[:, :, :TILE]
    later = (late[:, :, 1:] - video[:, :, TILE - 4 :]).abs() * weight[:, :, TILE - 4 :]
    return {"picture": (error.mean() + later.mean()) / 2, "kl": kl}


@torch.no_grad()
def standardise(vae: AutoencoderKLHunyuanVideo, device: str, window: render.Window = render.WHOLE) -> None:
    """Fold mean and spread of each latent channel into the 1x1x1 convolutions: latents become 0 +- 1, scaling 1.

    Channels that carry nothing (spread under 0.2) are only centred.
    """
    means, squares = [], []
    for _ in range(4):
        with autocast(device):
            clip = render.draw(render.random_batch(8, device), torch.arange(TILE), window)
            mean = vae.quant_conv(vae.encoder(clip)).float().chunk(2, dim=1)[0]
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


def reconstruct(vae: AutoencoderKLHunyuanVideo, video: Tensor) -> Tensor:
    """``video`` (B, 3, F, H, W) through the stock encode and decode, for the judge."""
    with torch.no_grad():
        return vae.decode(vae.encode(video).latent_dist.mode()).sample


def psnr(a: Tensor, b: Tensor) -> float:
    """Of pictures in -1..1, in dB."""
    return -10 * math.log10(float(((a.float() - b.float()) / 2).square().mean()) + 1e-12)


def _pad_by_joining() -> None:
    """Replace the replicating pad of the causal convolutions by joins of slices: the same numbers, a fast backward."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        left, right, top, bottom, before, _ = self.time_causal_padding
        x = hidden_states
        if before:
            x = torch.cat([x[:, :, :1]] * before + [x], dim=2)
        if top:
            x = torch.cat([x[:, :, :, :1]] * top + [x] + [x[:, :, :, -1:]] * bottom, dim=3)
        if left:
            x = torch.cat([x[..., :1]] * left + [x] + [x[..., -1:]] * right, dim=4)
        result: Tensor = self.conv(x)
        return result

    stock.HunyuanVideoCausalConv3d.forward = forward
