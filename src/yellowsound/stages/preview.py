"""Previews: a small strip of the predicted clip while it is still noise, from one matrix product.

A linear map from 16 latent channels to RGB is fitted by least squares to the first clip that this VAE decodes on this
machine, and kept in the user's cache; until then the strip is grey.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from yellowsound.cache import cache_folder, write_whole

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

STRIP_FRAMES = 4


def strip_of(video_x0: Floats, rgb_map: Floats | None, frames: int = STRIP_FRAMES) -> tuple[Pixels, int]:
    """Evenly spaced latent frames (T, h, w, C) as one strip uint8 (h, n * w, 3), and n.

    rgb_map: from ``fit_rgb_map``; the strip is grey without one, and with one of another number of channels.
    """
    total = video_x0.shape[0]
    picked = np.unique(np.linspace(0, total - 1, min(frames, total)).round().astype(int))
    fitting = rgb_map if _fits(rgb_map, video_x0) else None
    pictures = _grey(video_x0[picked]) if fitting is None else _colour(video_x0[picked], fitting)
    strip = np.nan_to_num(np.concatenate(list(pictures), axis=1))
    return np.ascontiguousarray((strip.clip(0, 1) * 255).round().astype(np.uint8)), len(picked)


def fit_rgb_map(video: Floats, frames: Pixels) -> Floats:
    """Least-squares map (C + 1, 3) from latent channels and a constant to RGB in 0..1.

    video: latents (T, h, w, C) of a finished clip; frames: its decoded pixels uint8 (4 (T - 1) + 1, 8 h, 8 w, 3).
    """
    latent_frames, height, width, channels = video.shape
    matching = frames[:: max(1, (len(frames) - 1) // max(1, latent_frames - 1))][:latent_frames].astype(np.float32)
    small = matching.reshape(latent_frames, height, frames.shape[1] // height, width, frames.shape[2] // width, 3)
    target = small.mean(axis=(2, 4)).reshape(-1, 3) / 255.0
    source = _with_constant(video.reshape(-1, channels))
    solution, *_ = np.linalg.lstsq(source, target, rcond=None)
    fitted: Floats = solution.astype(np.float32)
    return fitted


def _fits(rgb_map: Floats | None, video: Floats) -> bool:
    return rgb_map is not None and len(rgb_map) == video.shape[-1] + 1


def _colour(video: Floats, rgb_map: Floats) -> Floats:
    coloured: Floats = _with_constant(video) @ rgb_map
    return coloured


def _with_constant(video: Floats) -> Floats:
    return np.concatenate([video, np.ones((*video.shape[:-1], 1), np.float32)], axis=-1)


def _grey(video: Floats) -> Floats:
    """The channel that varies most, stretched to 0..1: a shape without a claim about colour."""
    video = np.nan_to_num(video)
    channel = video[..., int(video.reshape(-1, video.shape[-1]).std(axis=0).argmax())]
    low, high = float(channel.min()), float(channel.max())
    return np.repeat(((channel - low) / max(high - low, 1e-6))[..., None], 3, axis=-1)


@dataclass(slots=True)
class PreviewMap:
    """The map of one VAE, looked up once and kept; ``key`` names the VAE's weights."""

    key: str
    folder: Path | None = field(default_factory=lambda: cache_folder("previews"))
    value: Floats | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            self.value = _read(self.folder / f"{self.key}.npy")

    def learn(self, video: Floats, frames: Pixels) -> None:
        """Fit from a finished clip, once; a folder that cannot be written keeps the map for this process only."""
        if _fits(self.value, video):
            return
        self.value = fit_rgb_map(video, frames)
        if self.folder is not None:
            buffer = io.BytesIO()
            np.save(buffer, self.value, allow_pickle=False)
            write_whole(self.folder / f"{self.key}.npy", buffer.getvalue())


def _read(file: Path) -> Floats | None:
    """The kept map, finite float32 (C + 1, 3), or None: a damaged file is as good as none."""
    try:
        kept = np.load(file, allow_pickle=False)
    except Exception:  # numpy has many errors for files that are not what they were
        return None
    is_map = isinstance(kept, np.ndarray) and kept.dtype == np.float32 and kept.ndim == 2 and kept.shape[1] == 3
    return kept if is_map and np.isfinite(kept).all() else None
