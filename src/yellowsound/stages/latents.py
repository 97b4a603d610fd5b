"""Latents: the noise a clip starts from, with the picture's latent frame where there is one.

The order of draws from the one generator is the pipeline's: posterior sample of the image, video noise, audio noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from yellowsound.request import ClipRequest

TEMPORAL_COMPRESSION = 4


@dataclass(frozen=True, slots=True)
class Latents:
    """Both modalities, in the transformer's channels-last layout and dtype.

    video: (1, T, H/8, W/8, 16), one frame more when ``first_frame`` is the tail. audio: (1, L, 40) or None.
    first_frame: (1, H/8, W/8, 16), the clean latent of the picture, or None.
    """

    video: Tensor
    audio: Tensor | None
    first_frame: Tensor | None = None

    def without_tail(self) -> Latents:
        """The clip alone: the appended picture frame dropped."""
        return self if self.first_frame is None else Latents(self.video[:, :-1], self.audio)


def audio_tokens(num_frames: int, frame_rate: float, sample_rate_hz: int = 44_100, hop: int = 1024) -> int:
    """How many audio latents belong to ``num_frames``: 121 frames at 24 fps have 218, in Python floats as upstream."""
    latent_frames = (num_frames - 1) // TEMPORAL_COMPRESSION + 1
    return math.ceil(((latent_frames - 1) * TEMPORAL_COMPRESSION + 1) / frame_rate * sample_rate_hz / hop)


def encode_image(image: Any, vae: Any, request: ClipRequest, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """The picture's latent frame (1, H/8, W/8, 16), scaled: covered, centre-cropped, sampled from the posterior."""
    from diffusers.video_processor import VideoProcessor

    processor = VideoProcessor(vae_scale_factor=vae.config.spatial_compression_ratio)
    pixels = processor.preprocess(image, height=request.height, width=request.width, resize_mode="crop")
    pixels = pixels.to(device=vae.device, dtype=vae.dtype).unsqueeze(2)
    latents: Tensor = vae.encode(pixels).latent_dist.sample(generator) * vae.config.scaling_factor
    return latents[:, :, 0].permute(0, 2, 3, 1).to(dtype)


def draw_latents(
    request: ClipRequest,
    config: Mapping[str, Any],
    *,
    first_frame: Tensor | None,
    audio_length: int | None,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> Latents:
    """Seeded noise for a resolved request; ``config`` is the transformer's; no ``audio_length`` means picture only."""
    from diffusers.utils.torch_utils import randn_tensor

    assert request.num_frames and request.height and request.width and request.frame_rate
    latent_frames = (request.num_frames - 1) // TEMPORAL_COMPRESSION + 1
    shape: tuple[int, ...] = (1, latent_frames, request.height // 8, request.width // 8, int(config["in_visual_dim"]))
    video = randn_tensor(shape, generator=generator, device=device, dtype=dtype)
    audio = None
    if audio_length is not None:
        shape = (1, audio_length, int(config["in_audio_dim"]))
        audio = randn_tensor(shape, generator=generator, device=device, dtype=dtype)
    if first_frame is not None:
        video = torch.cat([video, first_frame[:, None]], dim=1)
    return Latents(video, audio, first_frame)
