"""ClipRequest: what a user asks for, validated once for the command line, HTTP and Python alike.

Knows geometry, ranges and the defaults that a checkpoint brings. Knows nothing of machines, speed or torch.
"""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

MAX_PROMPT_CHARACTERS = 32_000
MAX_SEED = 2**63 - 1
DRAWN_SEEDS = 2**32  # torch's CPU generator takes the low 32 bits of a seed: no drawn seed has a twin below it
MAX_STEPS = 200
MAX_GUIDANCE = 20.0
SIDE_MULTIPLE = 16  # 8 of the VAE times 2 of the patch
MAX_SIDE = 2048  # rope tables: 128 patches of 16 px a side
MAX_FRAMES = 509  # rope tables: 128 latent frames of 4 frames
MAX_SOUND_SECONDS = 2048 * 1024 / 44_100  # rope table of the audio tokens

Variant = Literal["flow", "piflow"]


class RequestError(ValueError):
    """A request that cannot be run: names the field, the value and what would be right."""

    def __init__(self, field_name: str, value: object, problem: str, nearest: object = None) -> None:
        self.field, self.value, self.problem, self.nearest = field_name, value, problem, nearest
        hint = f"; nearest legal value: {nearest}" if nearest is not None else ""
        super().__init__(f"{field_name}={_shown(value)}: {problem}{hint}")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a checkpoint fills in where a request is silent."""

    variant: Variant = "flow"
    num_inference_steps: int = 50
    guidance_scale: float = 5.0
    width: int = 864
    height: int = 480
    num_frames: int = 121
    frame_rate: float = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRequest:
    """One clip to make. ``None`` means: the checkpoint's default (or, for ``seed``, a random one).

    prompt: 1 to 32,000 characters. negative_prompt: ``None`` is the model's default text, ``""`` is empty.
    image: path or encoded bytes of the picture the clip starts from. width, height: pixels, multiples of 16.
    num_frames: 4k+1; others are rounded as diffusers does, with a warning. seed: 0 to 2**63-1, -1 is random.
    sample_audio: ``False`` writes no sound. frame_rate: frames a second, Python only. expanded_from: the short prompt
    that ``prompt`` was written out from, kept for the metadata. Raises RequestError.
    """

    prompt: str
    image: str | Path | bytes | None = None
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    num_frames: int | None = None
    frame_rate: float | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    sample_audio: bool = True
    expand_prompt: bool = False
    expanded_from: str | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _check_prompt("prompt", self.prompt)
        if self.negative_prompt is not None:
            _check_text("negative_prompt", self.negative_prompt)
        for name in ("width", "height"):
            _check_integer(name, getattr(self, name), SIDE_MULTIPLE, MAX_SIDE)
        check_size(self.width, self.height)
        _check_integer("num_frames", self.num_frames, 1, MAX_FRAMES)
        _check_number("frame_rate", self.frame_rate, 1.0, 120.0)
        _check_integer("num_inference_steps", self.num_inference_steps, 1, MAX_STEPS)
        _check_number("guidance_scale", self.guidance_scale, 0.0, MAX_GUIDANCE)
        _check_integer("seed", self.seed, -1, MAX_SEED)
        for name in ("sample_audio", "expand_prompt"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(name, getattr(self, name), "must be true or false")
        if self.num_frames is not None:
            self._round_frames()

    def _round_frames(self) -> None:
        assert self.num_frames is not None
        legal = round_frames(self.num_frames)
        if legal != self.num_frames:
            note = f"num_frames={self.num_frames} is not 4k+1: {legal} frames are made"
            object.__setattr__(self, "num_frames", legal)
            object.__setattr__(self, "warnings", (*self.warnings, note))

    def resolve(self, defaults: Defaults) -> ClipRequest:
        """The same request with every field filled in from ``defaults`` and the seed drawn.

        Raises RequestError where the request contradicts the checkpoint; warns through ``warnings``.
        """
        filled = replace(
            self,
            **{
                name: getattr(defaults, name)
                for name in (
                    "width", "height", "num_frames", "frame_rate", "num_inference_steps", "guidance_scale",
                )
                if getattr(self, name) is None
            },
            seed=secrets.randbelow(DRAWN_SEEDS) if self.seed in (None, -1) else self.seed,
        )  # fmt: skip
        return replace(filled, warnings=(*self.warnings, *_fit(filled, defaults)))

    @property
    def duration_seconds(self) -> float:
        """Length of the picture; only after ``resolve``."""
        assert self.num_frames is not None and self.frame_rate is not None
        return self.num_frames / self.frame_rate

    def to_json(self) -> dict[str, Any]:
        """Plain values for metadata and stores; the image appears only as whether there is one."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("image", "warnings")}
        return {**shown, "has_image": self.image is not None}


def round_frames(num_frames: int) -> int:
    """The frame count that is made for ``num_frames``: n//4*4+1, as the pipeline does; 4k+1 stays."""
    return num_frames if num_frames % 4 == 1 else num_frames // 4 * 4 + 1


def frames_for_seconds(seconds: float, frame_rate: float = 24.0) -> int:
    """The smallest 4k+1 frame count that lasts at least ``seconds``: 5 s at 24 fps are 121 frames."""
    _check_number("seconds", seconds, 1 / frame_rate, MAX_FRAMES / frame_rate)
    return math.ceil((math.ceil(seconds * frame_rate - 1e-9) - 1) / 4) * 4 + 1


def parse_size(text: object) -> tuple[int, int]:
    """``"864x480"`` (also ``X`` and ``*``) as (width, height) in pixels. Raises RequestError."""
    import re

    match = re.fullmatch(r"([0-9]{1,6})[xX*]([0-9]{1,6})", text) if isinstance(text, str) else None
    if match is None:
        raise RequestError("size", text, "must be WIDTHxHEIGHT in pixels", "864x480")
    width, height = int(match[1]), int(match[2])
    check_size(width, height)
    return width, height


def check_size(width: int | None, height: int | None) -> None:
    """Refuse a size that the network cannot make, naming the two nearest legal ones."""
    for side in (width, height):
        if side is not None and (side % SIDE_MULTIPLE or not SIDE_MULTIPLE <= side <= MAX_SIDE):
            break
    else:
        return
    below, above = (
        "x".join(str(_nearest_side(s, round_)) for s in (width, height) if s is not None)
        for round_ in (math.floor, math.ceil)
    )
    nearest = below if below == above else f"{below} or {above}"
    shown = "x".join(str(s) for s in (width, height) if s is not None)
    raise RequestError(
        "size", shown, f"both sides must be multiples of {SIDE_MULTIPLE} from {SIDE_MULTIPLE} to {MAX_SIDE}", nearest
    )


def _nearest_side(side: int, round_: Callable[[float], int]) -> int:
    return min(max(round_(side / SIDE_MULTIPLE), 1) * SIDE_MULTIPLE, MAX_SIDE)


def _fit(request: ClipRequest, defaults: Defaults) -> list[str]:
    """What of a resolved request does not suit the checkpoint: refused, or returned as warnings."""
    steps, guidance = request.num_inference_steps, request.guidance_scale
    assert steps is not None and guidance is not None and request.num_frames is not None
    assert request.frame_rate is not None
    if request.num_frames / request.frame_rate > MAX_SOUND_SECONDS:
        raise RequestError("frame_rate", request.frame_rate, f"sound ends at {MAX_SOUND_SECONDS:.1f} s")
    notes = []
    if defaults.variant == "piflow":
        if guidance != 1.0:
            raise RequestError("guidance_scale", guidance, "a distilled (PiFlow) checkpoint takes only 1.0", 1.0)
        if request.negative_prompt is not None:
            notes.append("negative_prompt is ignored: a distilled checkpoint runs without guidance")
        if not 4 <= steps <= 20:
            notes.append(f"num_inference_steps={steps}: distilled: {defaults.num_inference_steps} recommended")
        if not request.sample_audio:
            notes.append("no audio: a distilled checkpoint denoises sound with the picture; no track is written")
    else:
        if steps < 20 and steps < defaults.num_inference_steps:
            notes.append(f"num_inference_steps={steps}: base: {defaults.num_inference_steps} recommended")
        if request.negative_prompt is not None and guidance <= 1.0:
            notes.append(f"negative_prompt is ignored: guidance_scale={guidance} runs without guidance")
        if not request.sample_audio:
            notes.append("no audio: the base checkpoint runs picture only, which also changes the picture")
    return notes


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise RequestError(name, value, "must be text")
    if len(value) > MAX_PROMPT_CHARACTERS:
        raise RequestError(name, value, f"has {len(value)} characters, at most {MAX_PROMPT_CHARACTERS} are taken")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value) or "\0" in value:
        raise RequestError(name, value, "holds characters that are not text (NUL or half a surrogate pair)")


def _check_prompt(name: str, value: object) -> None:
    _check_text(name, value)
    if not str(value).strip():
        raise RequestError(name, value, "must say something: it is empty or blank")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RequestError(name, value, f"must be a whole number from {low} to {high}")
    if name in ("width", "height"):  # check_size names both sides and their nearest
        return
    if not low <= int(value) <= high:
        raise RequestError(name, value, f"must be from {low} to {high}", min(max(int(value), low), high))


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(float(value)):
        raise RequestError(name, value, f"must be a finite number from {low:g} to {high:g}")
    if not low <= float(value) <= high:
        raise RequestError(name, value, f"must be from {low:g} to {high:g}", min(max(float(value), low), high))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
