"""The transformer as training and evaluation call it: the pipeline's inputs, batched, with a clean tail picture."""

from __future__ import annotations

from typing import Any

import torch
from latents import Text
from torch import Tensor


def shifted(raw: Tensor, shift: float) -> Tensor:
    """Noise level for raw time: the schedulers' own warp, 0 to 0 and 1 to 1."""
    return shift * raw / (1 + (shift - 1) * raw)


def predict(
    model: Any, video: Tensor, audio: Tensor, image: Tensor | None, sigma: Tensor, text: Text,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Velocities (video, audio) at noise levels ``sigma`` (B,); with ``image`` it rides along as the tail frame.

    video: (B, 13, 16, 24, 16), audio: (B, L, 40), image: (B, 16, 24, 16). The tail's own prediction is dropped.
    """
    mask = torch.zeros_like(video[..., :1])
    positions = types = None
    if image is not None:
        video = torch.cat([video, image[:, None]], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        types = torch.zeros(video.shape[:2], dtype=torch.long, device=video.device)
        types[:, -1] = 1
        rows, columns = (torch.arange(n // 2, device=video.device) for n in video.shape[2:4])
        frames = torch.arange(video.shape[1] - 1, device=video.device)
        positions = (torch.cat([frames, frames.new_zeros(1)]), rows, columns)
    seen, heard = model(
        hidden_states=torch.cat([video, torch.zeros_like(video), mask], dim=-1).to(dtype),
        audio_hidden_states=audio.to(dtype),
        encoder_hidden_states=text.tokens.to(dtype),
        pooled_projections=text.pooled.to(dtype),
        timestep=sigma * 1000,
        visual_rope_pos=positions,
        encoder_attention_mask=text.mask,
        visual_token_type_ids=types,
        return_dict=False,
    )
    return (seen if image is None else seen[:, :-1]).float(), heard.float()


def guided(
    model: Any, video: Tensor, audio: Tensor, image: Tensor | None, sigma: Tensor, text: Text, empty: Text,
    scale: float, dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Classifier-free guidance as the pipeline does it, against the negative prompt ``empty`` (one row)."""
    cond = predict(model, video, audio, image, sigma, text, dtype)
    if scale == 1.0:
        return cond
    none = predict(model, video, audio, image, sigma, spread(empty, len(video)), dtype)
    seen, heard = (u + scale * (c - u) for c, u in zip(cond, none, strict=True))
    return seen, heard


def spread(text: Text, number: int) -> Text:
    """One encoded prompt for a whole batch."""
    return Text(*(x.expand(number, *x.shape[1:]).contiguous() for x in (text.tokens, text.mask, text.pooled)))
