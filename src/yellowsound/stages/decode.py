"""The decode stage: latents become frames and a waveform, with diffusers' VAEs and vocoder.

Frames leave in chunks as soon as the VAE has blended them, so that encoding overlaps decoding. ``whole`` and ``tiled``
are diffusers' own two decode plans (spatial tiling off and on); each is bit-identical to ``vae.decode`` set that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from yellowsound.stages.latents import Latents

DecodePlan = Literal["whole", "tiled"]


def decode_audio(latents: Tensor, audio_vae: Any, vocoder: Any) -> npt.NDArray[np.float32]:
    """Audio latents (1, L, 40) to a mono waveform (1, L * 1024), float32 in [-1, 1], at the VAE's sample rate."""
    scaled = latents.permute(0, 2, 1).to(audio_vae.dtype) / audio_vae.config.scaling_factor
    mel = audio_vae.decode(scaled, return_dict=False)[0]
    wave = vocoder(mel.to(vocoder.dtype), return_dict=False)[0][:, 0].float()
    waveform: npt.NDArray[np.float32] = wave.cpu().numpy()
    return waveform


def decode_video(latents: Latents, vae: Any, plan: DecodePlan = "whole") -> Iterator[npt.NDArray[np.uint8]]:
    """Video latents to uint8 chunks (n, H, W, 3), in order, as the pipeline's ``output_type="pil"`` rounds them.

    Rounded on the device, where it costs nothing: the same float32 product and the same rounding to even as numpy's.
    """
    from diffusers.video_processor import VideoProcessor

    processor = VideoProcessor(vae_scale_factor=vae.config.spatial_compression_ratio)
    z = latents.video.permute(0, 4, 1, 2, 3).to(vae.dtype) / vae.config.scaling_factor
    for chunk in decode_chunks(z, vae, plan):
        pixels = processor.postprocess_video(chunk, output_type="pt")[0].permute(0, 2, 3, 1)
        frames: npt.NDArray[np.uint8] = (pixels.float() * 255).round().to(torch.uint8).contiguous().cpu().numpy()
        yield frames


def decode_chunks(z: Tensor, vae: Any, plan: DecodePlan = "whole") -> Iterator[Tensor]:
    """``vae.decode(z)`` cut along time: chunks (1, 3, n, H, W), each final before the next tile is decoded.

    Time tiles, strides and blends are those of diffusers' framewise decoding; a short clip is one chunk.
    """
    vae.use_tiling = plan == "tiled"
    tile = vae.tile_sample_min_num_frames // vae.temporal_compression_ratio
    if not vae.use_framewise_decoding or z.shape[2] <= tile:
        yield vae.decode(z, return_dict=False)[0]
        return
    yield from _time_tiles(z, vae, tile)


def _time_tiles(z: Tensor, vae: Any, tile: int) -> Iterator[Tensor]:
    ratio = vae.temporal_compression_ratio
    stride = vae.tile_sample_stride_num_frames // ratio
    blend = vae.tile_sample_min_num_frames - vae.tile_sample_stride_num_frames
    left = (z.shape[2] - 1) * ratio + 1
    previous: Tensor | None = None
    for start in range(0, z.shape[2], stride):
        if left <= 0:  # diffusers decodes one more tile and cuts it off
            return
        decoded = _decode_tile(z[:, :, start : start + tile + 1], vae)
        take = vae.tile_sample_stride_num_frames + (1 if previous is None else 0)
        if previous is not None:
            decoded = vae.blend_t(previous, decoded[:, :, 1:], blend)
        chunk = decoded[:, :, : min(take, left)]
        left -= chunk.shape[2]
        previous = decoded
        yield chunk


def _decode_tile(z: Tensor, vae: Any) -> Tensor:
    """One time tile: spatially tiled where that is on and the tile is larger than one, else in one piece."""
    height, width = (side // vae.spatial_compression_ratio for side in (
        vae.tile_sample_min_height, vae.tile_sample_min_width,
    ))  # fmt: skip
    if vae.use_tiling and (z.shape[-2] > height or z.shape[-1] > width):
        tiled: Tensor = vae.tiled_decode(z, return_dict=False)[0]
        return tiled
    decoded: Tensor = vae.decoder(vae.post_quant_conv(z))
    return decoded


class NotFiniteError(RuntimeError):
    """The networks produced NaN or infinity; the clip would be black noise."""


def require_finite(latents: Latents) -> None:
    """Refuse latents that are no numbers before they are decoded. Raises NotFiniteError."""
    for name, part in (("video", latents.video), ("audio", latents.audio)):
        if part is not None and not bool(torch.isfinite(part).all()):
            raise NotFiniteError(f"{name} latents hold NaN or infinity: damaged weights or a number format too small")
