"""Stage c: the flow transformer, by flow matching on captioned latents of picture and sound together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import build
import parts
import render
import torch
from denoiser import predict, shifted, spread
from diffusers import Kandinsky6Transformer3DModel
from latents import NEGATIVE, Store, Text, TextEncoders, keep, new_store
from progress import (
    Average,
    Budget,
    Half,
    Keeper,
    Log,
    Step,
    clip,
    compiled,
    learning_rate,
    optimizer,
    prepare,
    set_rate,
)
from torch import Tensor

PEAK_RATE, SHIFT, DROPPED = 1e-3, 3.0, 0.1
AUDIO_WEIGHT = 1.0
IMAGE_EVERY = 2  # each second batch starts from a picture


def train(
    work: Path, until: float, device: str, *, batch: int = 64, clips: int = 16_384, first: int = 4096, chunk: int = 64,
    fresh: bool, peak: float = PEAK_RATE, renew_every: int = 96, window: render.Window = render.WHOLE,
) -> None:  # fmt: skip
    """Train until ``until`` (time.time()) from the weights in ``work`` or, if ``fresh``, new ones; write the average.

    Compiles on random data while the autoencoders are still in training, then waits for them. The encoded clips are
    kept, for PiFlow to begin with.
    """
    prepare(device)
    log, folder = Log(work / "logs", "flow"), work / "flow" / "transformer"
    text = TextEncoders(work, device)
    model = _fresh(device) if fresh else parts.load(Kandinsky6Transformer3DModel, folder, device)
    learner = Learner(model, batch, text, device)
    log.write(compiled=True)
    seed = int(time.time()) % 100_000
    needed = [work / "common" / name for name in ("vae", "audio_vae")]
    store = new_store(work, text, clips, seed, lambda: await_ready(needed, 300), window, first=first, chunk=chunk)
    log.write(encoded=store.filled, video_std=store.video[:chunk].float().std())
    fit(learner, store, Budget(max(until - time.time(), 1.0)), log, batch, peak, renew_every, folder)
    parts.save(model, folder, ready=True)
    keep(store, work)
    log.write(done=True)


def fill(
    work: Path, until: float, device: str, *, clips: int, chunk: int, window: render.Window = render.WHOLE, **_: Any
) -> None:
    """Encode captioned clips until all are there or ``until`` has come, and keep them for the flow and PiFlow."""
    prepare(device)
    log, needed = Log(work / "logs", "store"), [work / "common" / name for name in ("vae", "audio_vae")]
    text = TextEncoders(work, device)
    store = new_store(
        work,
        text,
        clips,
        int(time.time()) % 100_000,
        lambda: await_ready(needed, 300),
        window,
        first=chunk,
        chunk=chunk,
    )
    while store.filled < store.kept and time.time() < until:
        store.renew()
        if log.is_due():
            log.write(encoded=store.filled)
    keep(store, work)
    log.write(encoded=store.filled, done=True)


class Learner:
    """The model, the copy that computes, and one step for each kind of batch: without and with a tail picture."""

    def __init__(self, model: Any, batch: int, text: TextEncoders, device: str) -> None:
        self.model, self.half, self.empty = model, Half(model), text([NEGATIVE])
        self.network = compiled(self.half.model, device)
        self.steps: dict[bool, Step] = {}
        if device == "cuda":  # compile now, on noise, while the autoencoders are still in training
            video, audio = torch.randn(batch, 13, 16, 24, 16, device=device), torch.randn(batch, 88, 40, device=device)
            for image in (None, video[:, 0]):
                self(video, audio, image, spread(self.empty, batch))

    def __call__(self, video: Tensor, audio: Tensor, image: Tensor | None, text: Text) -> tuple[Tensor, ...]:
        """Losses for picture and sound; leaves the model with their gradients."""
        inputs = [video, audio, text.tokens, text.mask, text.pooled, *([] if image is None else [image])]
        key = image is not None
        if key not in self.steps:
            self.steps[key] = Step(self._losses, self.half.halves, inputs)
        results = self.steps[key](*inputs)
        self.half.give_gradients(self.steps[key].gradients)
        return results

    def _losses(
        self, video: Tensor, audio: Tensor, tokens: Tensor, mask: Tensor, pooled: Tensor, image: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean squared errors of the velocity noise - data at random noise levels."""
        sigma = shifted(torch.rand(len(video), device=video.device), SHIFT)
        noise, hiss = torch.randn_like(video), torch.randn_like(audio)
        noisy = torch.lerp(video, noise, sigma.view(-1, 1, 1, 1, 1))
        hissing = torch.lerp(audio, hiss, sigma.view(-1, 1, 1))
        seen, heard = predict(self.network, noisy, hissing, image, sigma, Text(tokens, mask, pooled), self.half.dtype)
        return (seen - (noise - video)).square().mean(), AUDIO_WEIGHT * (heard - (hiss - audio)).square().mean()


def fit(
    learner: Learner, store: Store, budget: Budget, log: Log, batch: int, peak: float, renew_every: int, folder: Path
) -> None:  # fmt: skip
    """The loop; leaves the averaged weights in the learner's model, and now and then also in ``folder``."""
    device, count, model = str(store.video.device), 0, learner.model
    optimiser, average, keeper = optimizer(model, peak), Average(model, horizon=500), Keeper(budget)
    while budget.goes_on():
        set_rate(optimiser, learning_rate(budget.part, peak))
        if count % renew_every == 0:
            _renew(store)
        video, audio, image, text = store.sample(batch, with_image=count % IMAGE_EVERY == IMAGE_EVERY - 1)
        text = text.where(torch.rand(batch, device=device) < DROPPED, learner.empty)
        seen, heard = learner(video, audio, image, text)
        clip(model)
        optimiser.step()
        learner.half.take_weights()
        average.update()
        count += 1
        if log.is_due() or count == 1:
            log.write(step=count, video=seen, audio=heard)
        keeper.keep(model, average, folder)
    average.swap()


def _renew(store: Store) -> None:
    try:
        store.renew()
    except torch.OutOfMemoryError:  # others use the device too; go on with the clips there are
        torch.cuda.empty_cache()


def _fresh(device: str) -> Any:
    torch.manual_seed(int(time.time()))
    model = build.new_transformer("flow")
    for head in (model.out_layer.out_layer, model.audio_out_layer.out_layer):
        torch.nn.init.zeros_(head.weight)
    return model.to(device).train()


def await_ready(needed: list[Path], seconds: float) -> None:
    """Until the stages that train the parts ``needed`` have finished. Raises TimeoutError naming what is missing."""
    limit = time.monotonic() + seconds
    while missing := [str(f) for f in needed if not parts.is_ready(f)]:
        if time.monotonic() > limit:
            raise TimeoutError(f"not trained after {seconds:.0f} s: {', '.join(missing)}")
        time.sleep(0.2)
