"""Stage c: the flow transformer, by flow matching on captioned latents of picture and sound together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import build
import parts
import render
import torch
from denoiser import predict, shifted
from diffusers import Kandinsky6Transformer3DModel
from latents import NEGATIVE, Store, Text, TextEncoders, new_store
from progress import Average, Budget, Log, autocast, compiled, learning_rate, optimizer, prepare, set_rate
from torch import Tensor

PEAK_RATE, SHIFT, DROPPED = 1.5e-3, 3.0, 0.1
AUDIO_WEIGHT = 1.0
IMAGE_EVERY = 4  # each fourth batch starts from a picture


def train(
    work: Path, until: float, device: str, *, batch: int = 64, clips: int = 16_384, first: int = 4096, chunk: int = 64,
    fresh: bool, peak: float = PEAK_RATE, renew_every: int = 32, window: render.Window = render.WHOLE,
) -> None:  # fmt: skip
    """Train until ``until`` (time.time()) from the weights in ``work`` or, if ``fresh``, new ones; write the average.

    Compiles on random data while the autoencoders are still in training, then waits for them.
    """
    prepare(device)
    log, folder = Log(work / "logs", "flow"), work / "flow" / "transformer"
    text = TextEncoders(work, device)
    empty = text([NEGATIVE])
    model = _fresh(device) if fresh else parts.load(Kandinsky6Transformer3DModel, folder, device)
    network = compiled(model, device)
    if device != "cpu":
        _warm_up(network, model, batch, empty, device)
        log.write(compiled=True)
    seed = int(time.time()) % 100_000
    store = new_store(work, text, clips, seed, lambda: _wait(work, 300), window, first=first, chunk=chunk)
    log.write(encoded=store.filled, video_std=store.video[:64].float().std(), audio_std=store.audio[:64].float().std())
    fit(model, network, store, empty, Budget(max(until - time.time(), 1.0)), log, batch, peak, renew_every)
    parts.save(model, folder, ready=True)
    log.write(done=True)


def fit(
    model: Any, network: Any, store: Store, empty: Text, budget: Budget, log: Log, batch: int, peak: float,
    renew_every: int,
) -> None:  # fmt: skip
    """The loop; leaves the averaged weights in ``model``."""
    device, step = str(store.video.device), 0
    optimiser, average = optimizer(model, peak), Average(model)
    while not budget.is_spent:
        set_rate(optimiser, learning_rate(budget.part, peak))
        if step % renew_every == 0:
            store.renew()
        video, audio, image, text = store.sample(batch, with_image=step % IMAGE_EVERY == IMAGE_EVERY - 1)
        text = text.where(torch.rand(batch, device=device) < DROPPED, empty)
        seen, heard = flow_losses(network, video, audio, image, text)
        optimiser.zero_grad(set_to_none=True)
        (seen + AUDIO_WEIGHT * heard).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        average.update()
        step += 1
        if log.is_due() or step == 1:
            log.write(step=step, video=seen, audio=heard)
    average.swap()


def flow_losses(network: Any, video: Tensor, audio: Tensor, image: Tensor | None, text: Text) -> tuple[Tensor, Tensor]:
    """Mean squared errors of the velocity noise - data, for picture and sound, at random noise levels."""
    sigma = shifted(torch.rand(len(video), device=video.device), SHIFT)
    noise, hiss = torch.randn_like(video), torch.randn_like(audio)
    level, flat = sigma.view(-1, 1, 1, 1, 1), sigma.view(-1, 1, 1)
    with autocast(video.device.type):
        seen, heard = predict(
            network, torch.lerp(video, noise, level), torch.lerp(audio, hiss, flat), image, sigma, text
        )
    return (seen - (noise - video)).square().mean(), (heard - (hiss - audio)).square().mean()


def _fresh(device: str) -> Any:
    torch.manual_seed(int(time.time()))
    model = build.new_transformer("flow")
    for head in (model.out_layer.out_layer, model.audio_out_layer.out_layer):
        torch.nn.init.zeros_(head.weight)
    return model.to(device).train()


def _warm_up(network: Any, model: Any, batch: int, empty: Text, device: str) -> None:
    """Compile both shapes of a training step, without and with a tail picture, on random data."""
    for tail in (False, True):
        video, audio = torch.randn(batch, 13, 16, 24, 16, device=device), torch.randn(batch, 88, 40, device=device)
        text = Text(*(x.expand(batch, *x.shape[1:]).clone() for x in (empty.tokens, empty.mask, empty.pooled)))
        losses = flow_losses(network, video, audio, video[:, 0] if tail else None, text)
        sum(losses).backward()  # type: ignore[union-attr]
    model.zero_grad(set_to_none=True)


def _wait(work: Path, seconds: float) -> None:
    """Until both autoencoders are marked ready. Raises TimeoutError naming what is missing."""
    limit = time.monotonic() + seconds
    needed = [work / "common" / name for name in ("vae", "audio_vae")]
    while missing := [str(f) for f in needed if not parts.is_ready(f)]:
        if time.monotonic() > limit:
            raise TimeoutError(f"not trained after {seconds:.0f} s: {', '.join(missing)}")
        time.sleep(0.2)
