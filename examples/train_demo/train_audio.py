"""Stage b: the mel autoencoder, then the vocoder on what the autoencoder gives back; spectral losses only."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parts
import render
import torch
from diffusers import MMAudioVAE, MMAudioVocoder
from diffusers.models.autoencoders import mmaudio_vocoder as stock
from progress import Budget, Log, Step, clip, learning_rate, optimizer, prepare, set_rate
from torch import Tensor
from torch.nn import functional

VAE_RATE, VOCODER_RATE, KL_WEIGHT = 2e-3, 2e-3, 3e-3
WAVE_WEIGHT = 30.0  # the world's tones keep their phase to the frames, so that waveforms can be compared
SEGMENT_FRAMES, HOP = 40, 512
RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128), (256, 64))  # window and hop of the spectra that are compared


def train(work: Path, seconds: float, device: str, *, batch: int = 64, vae_part: float = 0.4) -> None:
    """Train both parts for ``seconds`` from the weights in ``work``: the autoencoder first, then the vocoder."""
    prepare(device)
    log = Log(work / "logs", "audio")
    vae = parts.load(MMAudioVAE, work / "common" / "audio_vae", device)
    _train_vae(vae, Budget(seconds * vae_part), log, batch, device)
    scale_latents(vae, device, batch)
    parts.save(vae, work / "common" / "audio_vae", ready=True)
    vocoder = parts.load(MMAudioVocoder, work / "common" / "vocoder", device)
    _train_vocoder(vocoder, vae, Budget(seconds * (1 - vae_part)), log, max(batch // 4, 1), device)
    parts.save(vocoder, work / "common" / "vocoder", ready=True)
    log.write(done=True)


def _mel(vae: MMAudioVAE, number: int, device: str) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        wave = render.sound(render.random_batch(number, device))
        return wave, vae.mel_converter(wave)


def _train_vae(vae: MMAudioVAE, budget: Budget, log: Log, batch: int, device: str) -> None:
    """L1 of the standardised log-mel plus KL; the statistics of the bins are measured first."""
    mel = _mel(vae, 4 * batch, device)[1]
    if float(vae.vae.data_std.mean()) == 1.0:  # untrained: give the magnitude-preserving layers unit gain
        vae.vae.data_mean.copy_(mel.mean((0, 2)).view(1, -1, 1))
        vae.vae.data_std.copy_(mel.std((0, 2)).view(1, -1, 1))
        for parameter in vae.vae.parameters():
            if parameter.ndim == 3:
                torch.nn.init.normal_(parameter, std=1 / math.sqrt(parameter[0].numel()))

    def losses(mel: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = vae.vae.encode(mel).chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = ((vae.vae.decode(latents) - mel) / vae.vae.data_std).abs().mean()
        return error, KL_WEIGHT * 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()

    _loop(vae, losses, lambda: (_mel(vae, batch, device)[1],), budget, log, VAE_RATE, ("mel", "kl"))


@torch.no_grad()
def scale_latents(vae: MMAudioVAE, device: str, batch: int) -> None:
    """Fold the spread of each latent channel into encoder and decoder, so that the scaling factor is 1.

    Channels that carry nothing (spread under 0.2) stay as they are. These layers have no bias: no centring.
    """
    mean = vae.vae.encode(_mel(vae, 4 * batch, device)[1]).chunk(2, dim=1)[0]
    spread = mean.square().mean((0, 2)).sqrt()
    scale = torch.where(spread < 0.2, 1.0, 1 / spread.clamp(min=1e-6))
    vae.vae.encoder.conv_out.weight[: len(scale)] *= scale.view(-1, 1, 1)
    vae.vae.decoder.conv_in.weight /= scale.view(1, -1, 1)


def _train_vocoder(vocoder: MMAudioVocoder, vae: MMAudioVAE, budget: Budget, log: Log, batch: int, device: str) -> None:
    _filter_one_by_one()

    def losses(wave: Tensor, mel: Tensor) -> tuple[Tensor, Tensor]:
        made = vocoder.conv_post(_body(vocoder, mel))[:, 0]
        return WAVE_WEIGHT * (made - wave).abs().mean(), spectral_distance(made, wave)

    _loop(vocoder, losses, lambda: _segments(vae, batch, device), budget, log, VOCODER_RATE, ("wave", "spectra"))


def _loop(
    model: torch.nn.Module, losses: Callable[..., tuple[Tensor, ...]], data: Callable[[], tuple[Tensor, ...]],
    budget: Budget, log: Log, peak: float, names: tuple[str, ...],
) -> None:  # fmt: skip
    """Minimise the sum of ``losses`` of ``data`` until the budget is spent."""
    optimiser, count = optimizer(model, peak, decay=0.0), 0
    parameters = [p for p in model.parameters() if p.requires_grad]
    step = Step(losses, parameters, data())
    while budget.goes_on():
        set_rate(optimiser, learning_rate(budget.part, peak))
        results = step(*data())
        for parameter, gradient in zip(parameters, step.gradients, strict=True):
            parameter.grad = gradient
        clip(model)
        optimiser.step()
        count += 1
        if log.is_due() or count == 1:
            log.write(step=count, **dict(zip(names, results, strict=True)))


def _filter_one_by_one() -> None:
    """Run the vocoder's resampling filters on (B * C, 1, L) instead of in C groups: the same numbers, far faster."""

    def up(self: Any, x: Tensor) -> Tensor:
        flat = functional.pad(x.reshape(-1, 1, x.shape[-1]), (self.pad, self.pad), mode="replicate")
        made = self.ratio * functional.conv_transpose1d(flat, self.filter, stride=self.stride)
        cut: Tensor = made[..., self.pad_left : -self.pad_right].reshape(*x.shape[:2], -1)
        return cut

    def low_pass(self: Any, x: Tensor) -> Tensor:
        flat = functional.pad(x.reshape(-1, 1, x.shape[-1]), (self.pad_left, self.pad_right), mode="replicate")
        return functional.conv1d(flat, self.filter, stride=self.stride).reshape(*x.shape[:2], -1)

    stock.MMAudioUpSample1d.forward = up
    stock.MMAudioLowPassFilter1d.forward = low_pass


def _body(vocoder: MMAudioVocoder, mel: Tensor) -> Any:
    """The vocoder's own forward up to its last layer: its final clamp would stop the gradient of loud samples."""
    hidden = vocoder.conv_pre(mel)
    for stage, up in enumerate(vocoder.ups):
        hidden = up[0](hidden)
        blocks = vocoder.resblocks[stage * vocoder.num_kernels : (stage + 1) * vocoder.num_kernels]
        hidden = sum(block(hidden) for block in blocks) / vocoder.num_kernels
    return vocoder.activation_post(hidden)


@torch.no_grad()
def _segments(vae: MMAudioVAE, batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Random pieces of sound and their mel, half of them as the autoencoder gives them back."""
    wave, mel = _mel(vae, batch, device)
    latents = vae.vae.encode(mel).chunk(2, dim=1)[0]
    given = vae.vae.decode(latents + 0.05 * torch.randn_like(latents))
    mel = torch.where(torch.rand(batch, 1, 1, device=device) < 0.7, given, mel)
    first = int(torch.randint(0, mel.shape[-1] - SEGMENT_FRAMES + 1, ()))
    last = first + SEGMENT_FRAMES
    return wave[:, first * HOP : last * HOP].contiguous(), mel[..., first:last].contiguous()


def spectral_distance(made: Tensor, wanted: Tensor) -> Tensor:
    """L1 between magnitudes and between log magnitudes of waveforms (B, N), mean over RESOLUTIONS."""
    total = made.new_zeros(())
    for size, hop in RESOLUTIONS:
        window = torch.hann_window(size, device=made.device)
        a, b = (
            torch.stft(x, size, hop, window=window, return_complex=True).abs() / math.sqrt(size) for x in (made, wanted)
        )
        total = total + functional.l1_loss(a, b) * 10 + functional.l1_loss((a + 1e-3).log(), (b + 1e-3).log())
    return total / len(RESOLUTIONS)
