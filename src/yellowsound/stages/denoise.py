"""The denoising loop: noise becomes latents. Knows the transformer's call and the schedulers, not memory or speed.

``predict`` is how one step asks the network: ``predict_stock`` calls it as diffusers does; the streamed engine passes
its own, which takes both guidance branches through each block in one weight pass. ``prepare`` is told the timesteps
and branches before the first step, for what can be computed once for all steps.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from yellowsound.stages.latents import Latents
from yellowsound.stages.text import TextEmbeds

Prediction = tuple[Tensor, ...]  # video (1, T, h, w, C) and, with sound, audio (1, L, C)
Conditioning = tuple[Tensor, Tensor, Tensor | None]  # tokens, pooled, mask of one guidance branch
Predict = Callable[[Any, Sequence[dict[str, Any]]], Sequence[Prediction]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step leaves: ``video_x0`` is the predicted clean clip (1, T, h, w, 16), float32."""

    step: int
    steps: int
    seconds: float
    latents: Latents
    predicted_video: Callable[[], Tensor]


def predict_stock(transformer: Any, branches: Sequence[dict[str, Any]]) -> Sequence[Prediction]:
    """One transformer call a branch, exactly as the pipeline makes them."""
    return [transformer(**inputs, return_dict=False) for inputs in branches]


def denoise(
    transformer: Any,
    scheduler: Any,
    latents: Latents,
    texts: Sequence[TextEmbeds],
    guidance_scale: float,
    num_inference_steps: int,
    *,
    predict: Predict = predict_stock,
    prepare: Callable[[Tensor, Sequence[Conditioning]], None] = lambda timesteps, branches: None,
    on_step: Callable[[StepResult], None] = lambda _: None,
) -> Latents:
    """Run the schedule from noise; ``texts`` is (prompt,) or, with guidance, (prompt, negative prompt).

    Bit-identical to diffusers' loop on the same device and dtype. Latents stay in the transformer's dtype between
    steps; each scheduler computes its step in float32. Returns the latents without the picture's tail frame.
    """
    video_scheduler = copy.deepcopy(scheduler)
    video_scheduler.set_timesteps(num_inference_steps, device=latents.video.device)
    audio_scheduler = copy.deepcopy(video_scheduler)
    prepare(video_scheduler.timesteps, [(text.tokens, text.pooled, text.mask) for text in texts])
    tail = tail_arguments(latents, transformer.config.patch_size)
    for index, timestep in enumerate(video_scheduler.timesteps):
        began = time.perf_counter()
        latents = with_clean_tail(latents)
        inputs = {
            "hidden_states": with_condition_channels(latents, transformer.config),
            "audio_hidden_states": latents.audio,
            "timestep": timestep.expand(1),
            **tail,
        }
        predictions = predict(transformer, [{**inputs, **text_arguments(text)} for text in texts])
        prediction = guided(predictions, guidance_scale)
        before, sigma = latents, video_scheduler.sigmas[index]
        video = video_scheduler.step(prediction[0], timestep, latents.video, return_dict=False)[0]
        audio = latents.audio
        if audio is not None:
            audio = audio_scheduler.step(prediction[1], timestep, audio, return_dict=False)[0]
        latents = replace(latents, video=video, audio=audio)
        on_step(
            StepResult(
                index + 1,
                num_inference_steps,
                time.perf_counter() - began,
                latents,
                partial(predicted_x0, before, prediction[0], sigma),
            )
        )
    return latents.without_tail()


def guided(predictions: Sequence[Prediction], guidance_scale: float) -> Prediction:
    """uncond + g * (cond - uncond) for both modalities, in the model's dtype; one branch passes through."""
    if len(predictions) == 1:
        return predictions[0]
    cond, uncond = predictions
    return tuple(u + guidance_scale * (c - u) for c, u in zip(cond, uncond, strict=True))


def text_arguments(text: TextEmbeds) -> dict[str, Tensor | None]:
    """The transformer's arguments that belong to one guidance branch."""
    return {
        "encoder_hidden_states": text.tokens,
        "pooled_projections": text.pooled,
        "encoder_attention_mask": text.mask,
    }


def tail_arguments(latents: Latents, patch_size: Sequence[int]) -> dict[str, Any]:
    """Token types and rope positions: the appended picture has type 1 and reuses the first frame's position."""
    if latents.first_frame is None:
        return {"visual_rope_pos": None, "visual_token_type_ids": None}
    _, frames, height, width, _ = latents.video.shape
    device = latents.video.device
    types = torch.zeros((1, frames), dtype=torch.long, device=device)
    types[:, -1] = 1
    times = torch.arange((frames - 1) // patch_size[0], device=device)
    positions = (
        torch.cat([times, torch.zeros(1, dtype=torch.long, device=device)]),
        torch.arange(height // patch_size[1], device=device),
        torch.arange(width // patch_size[2], device=device),
    )
    return {"visual_rope_pos": positions, "visual_token_type_ids": types}


def with_clean_tail(latents: Latents) -> Latents:
    """The tail frame set back to the clean picture: the scheduler's update of it is thrown away."""
    if latents.first_frame is None:
        return latents
    return replace(latents, video=torch.cat([latents.video[:, :-1], latents.first_frame[:, None]], dim=1))


def with_condition_channels(latents: Latents, config: Any) -> Tensor:
    """[latent | zeros | mask] on the channels, mask 1 on the tail only; the zeros keep the trained input width."""
    video = latents.video
    if not config.visual_cond:
        return video
    mask = torch.zeros((*video.shape[:-1], 1), dtype=video.dtype, device=video.device)
    if latents.first_frame is not None:
        mask[:, -1] = 1
    return torch.cat([video, torch.zeros_like(video), mask], dim=-1)


def predicted_x0(before: Latents, velocity: Tensor, sigma: Tensor) -> Tensor:
    """x - sigma * v in float32, without the tail; of a PiFlow grid the entry 0, which belongs to the segment's end."""
    channels = before.video.shape[-1]
    video, velocity = before.video.float(), velocity[..., :channels].float()
    x0 = video - sigma.to(video.device) * velocity
    return x0 if before.first_frame is None else x0[:, :-1]
