"""Geometry: what of a request memory and time depend on, and nothing else of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from yellowsound.memory.units import Dtype
from yellowsound.request import ClipRequest

Offload = Literal["auto", "none", "module", "block"]
Decode = Literal["whole", "tiled"]
StageName = Literal["expand", "text", "image", "denoise", "decode", "audio", "mux"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What of a request memory and time depend on. ``tail``: a picture adds one clean latent frame at the end.

    branches: 1, or 2 with guidance. Sizes in pixels, frames 4k+1.
    """

    frames: int
    height: int
    width: int
    tail: bool = False
    branches: int = 1
    steps: int = 10
    dtype: Dtype = "bfloat16"
    frame_rate: float = 24.0
    text_tokens: int = 1024

    @property
    def latent_frames(self) -> int:
        return (self.frames - 1) // 4 + 1

    @property
    def visual_tokens(self) -> int:
        """Tokens of the picture, the tail frame included: 50,220 for 864x480x121."""
        return (self.latent_frames + self.tail) * (self.height // 16) * (self.width // 16)

    @property
    def audio_tokens(self) -> int:
        return math.ceil(((self.latent_frames - 1) * 4 + 1) / self.frame_rate * 44_100 / 1024)

    @property
    def still(self) -> Geometry:
        """The geometry of the one picture that a clip may start from."""
        return replace(self, frames=1, tail=False)

    @property
    def key(self) -> str:
        """The key that peaks are kept under, e.g. ``121x480x864`` or ``121x480x864+tail``."""
        return f"{self.frames}x{self.height}x{self.width}" + ("+tail" if self.tail else "")

    @classmethod
    def of(cls, request: ClipRequest, dtype: Dtype = "bfloat16") -> Geometry:
        """The geometry of a resolved request. Guidance above 1 runs two branches, as in the pipeline."""
        assert request.num_frames is not None and request.height is not None and request.width is not None
        assert request.guidance_scale is not None and request.num_inference_steps is not None
        assert request.frame_rate is not None
        return cls(
            frames=request.num_frames,
            height=request.height,
            width=request.width,
            tail=request.image is not None,
            branches=2 if request.guidance_scale > 1 else 1,
            steps=request.num_inference_steps,
            dtype=dtype,
            frame_rate=request.frame_rate,
        )
