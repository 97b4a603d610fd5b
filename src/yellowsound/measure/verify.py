"""One short clip through our engine and through diffusers' own pipeline, compared bit for bit.

For people with real weights: it also says what the headers are like and what could not be compared. The two run one
after the other, so that never more than one of them is in memory.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.engine import Engine
from yellowsound.request import ClipRequest
from yellowsound.residency import pick_device, pick_dtype
from yellowsound.weights.catalog import resolve
from yellowsound.weights.checksums import changed_files, hub_files
from yellowsound.weights.describe import describe
from yellowsound.weights.verify_shapes import check_against_models

State = Literal["equal", "differs", "not compared"]
TEXT_PARTS = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: what, how it came out, and the numbers or the reason."""

    what: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings on one checkpoint and the request that both made."""

    checkpoint: str
    folder: str
    device: str
    dtype: str
    request: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Nothing differs, and the latents at least were compared.

        Headers may differ: a repository can be uploaded anew, and some published values were never confirmed.
        """
        states = {finding.what: finding.state for finding in self.findings if finding.what != "headers"}
        return "differs" not in states.values() and states.get("video latents") == "equal"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


@dataclass(frozen=True, slots=True)
class _Made:
    """What a run left: latents as diffusers returns them, pixels uint8, waveform or None."""

    video_latents: torch.Tensor
    audio_latents: torch.Tensor | None
    frames: Any
    waveform: Any


def verify(
    checkpoint: str | Path,
    *,
    width: int,
    height: int,
    num_frames: int = 9,
    steps: int = 4,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    checksums: bool = True,
) -> Verdict:
    """Compare headers with the published ones, files with the hub's checksums, and a clip with diffusers'.

    The prompt holds a word drawn now, so that no kept embedding stands in for the text encoder.
    Raises CheckpointError for a damaged folder, RequestError for a clip that cannot be made.
    """
    folder = resolve(checkpoint)
    opened = Checkpoint.open(folder)
    prompt = f"a red ball bounces on a drum, {secrets.token_hex(4)}"
    request = ClipRequest(
        prompt=prompt, width=width, height=height, num_frames=num_frames, num_inference_steps=steps, seed=seed,
        sample_audio=opened.has_audio,
    ).resolve(opened.defaults)  # fmt: skip
    where = pick_device(device)
    findings = list(_look(opened, checksums))
    findings += _run_both(opened, request, where, pick_dtype(dtype, where))
    name = str(pick_dtype(dtype, where)).removeprefix("torch.")
    return Verdict(opened.name, str(folder), str(where), name, request.to_json(), tuple(findings))


def _look(checkpoint: Checkpoint, checksums: bool) -> Iterator[Finding]:
    """What can be said without running anything."""
    check_against_models(checkpoint)
    yield Finding("names and shapes", "equal", "every stored tensor is one of the models' own")
    facts = describe(checkpoint.folder)
    if not facts.like:
        yield Finding("headers", "not compared", "no published transformer has these tensors")
    else:
        state: State = "differs" if facts.notes else "equal"
        yield Finding("headers", state, "; ".join(facts.notes) or f"as published for {', '.join(facts.like)}")
    yield _checksums(checkpoint, checksums)


def _checksums(checkpoint: Checkpoint, wanted: bool) -> Finding:
    known = hub_files(checkpoint)
    if not wanted or not known:
        reason = "left out" if not wanted else "not a hub download: nobody's checksums are known"
        return Finding("file contents", "not compared", reason)
    changed = [str(file) for file in changed_files(known)]
    if changed:
        return Finding("file contents", "differs", f"not the hub's bytes: {', '.join(changed)}; download again")
    return Finding("file contents", "equal", f"{len(known)} weight files have the hub's SHA-256")


def _run_both(checkpoint: Checkpoint, request: ClipRequest, device: torch.device, dtype: torch.dtype) -> list[Finding]:
    outputs = ("video latents", "audio latents", "frames", "waveform")
    missing = [part for part in ("vae", *TEXT_PARTS) if part not in checkpoint.components]
    if missing:
        return [Finding(what, "not compared", f"the checkpoint lacks {', '.join(missing)}") for what in outputs]
    ours = _ours(checkpoint, request, device, dtype)
    try:
        stock = _stock(checkpoint, request, device, dtype)
    except (torch.OutOfMemoryError, MemoryError) as error:
        reason = f"diffusers ran out of memory here ({str(error).splitlines()[0][:120] if str(error) else 'host'})"
        return [Finding(what, "not compared", reason) for what in outputs]
    return list(_compare(ours, stock))


def _ours(checkpoint: Checkpoint, request: ClipRequest, device: torch.device, dtype: torch.dtype) -> _Made:
    engine = Engine.load(checkpoint, device=str(device), dtype=str(dtype).removeprefix("torch."))
    clip = engine.generate(request)
    engine.close()
    audio = clip.latents.audio
    video = clip.latents.video.permute(0, 4, 1, 2, 3).cpu()
    made = _Made(video, None if audio is None else audio.permute(0, 2, 1).cpu(), clip.frames, clip.waveform)
    _empty_caches()
    return made


def _stock(checkpoint: Checkpoint, request: ClipRequest, device: torch.device, dtype: torch.dtype) -> _Made:
    """The pipeline's own call, once; its last latents are taken from the step callback."""
    pipeline = load_stock(checkpoint, device, dtype)
    kept: dict[str, torch.Tensor] = {}

    def keep(_: Any, __: int, ___: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        kept.update({name: tensor.detach().clone().cpu() for name, tensor in tensors.items() if tensor is not None})
        return {}

    audio_inputs = ["audio_latents"] if request.sample_audio else []
    output = pipeline(
        prompt=request.prompt,
        width=request.width,
        height=request.height,
        num_frames=request.num_frames,
        frame_rate=request.frame_rate,
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        sample_audio=request.sample_audio,
        generator=torch.Generator("cpu").manual_seed(request.seed or 0),
        output_type="np",
        callback_on_step_end=keep,
        callback_on_step_end_tensor_inputs=["latents", *audio_inputs],
    )
    audio = kept.get("audio_latents")
    frames = (output.frames[0] * 255).round().astype(np.uint8)
    video = kept["latents"].permute(0, 4, 1, 2, 3)
    return _Made(video, None if audio is None else audio.permute(0, 2, 1), frames, output.audio)


def load_stock(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Any:
    """diffusers' pipeline on ``checkpoint``, whole on the device if it fits, else with its own offloading."""
    from diffusers import Kandinsky6TI2VAPipeline
    from transformers import AutoTokenizer

    folder = checkpoint.folder  # the plain tokenizer gives equal ids and needs no torchvision
    pipeline = Kandinsky6TI2VAPipeline.from_pretrained(folder, tokenizer=None, dtype=dtype, local_files_only=True)
    pipeline.register_modules(tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True))
    pipeline.set_progress_bar_config(disable=True)
    if device.type != "cuda":
        return pipeline.to(device)
    free, _ = torch.cuda.mem_get_info(device)
    largest = max(part.size_bytes for part in checkpoint.components.values())
    if checkpoint.size_bytes * 1.3 < free:
        return pipeline.to(device)
    if largest * 1.3 < free:
        pipeline.enable_model_cpu_offload(device=device)
    else:
        pipeline.enable_sequential_cpu_offload(device=device)
    return pipeline


def _compare(ours: _Made, stock: _Made) -> Iterator[Finding]:
    yield _arrays("video latents", ours.video_latents, stock.video_latents)
    yield _arrays("audio latents", ours.audio_latents, stock.audio_latents)
    yield _arrays("frames", ours.frames, stock.frames)
    yield _arrays("waveform", ours.waveform, stock.waveform)


def _arrays(what: str, ours: Any, stock: Any) -> Finding:
    if ours is None and stock is None:
        return Finding(what, "not compared", "neither makes it: this checkpoint has no audio parts")
    if ours is None or stock is None:
        return Finding(what, "differs", f"{'we make none' if ours is None else 'diffusers makes none'}")
    left, right = torch.as_tensor(ours), torch.as_tensor(stock)
    if left.shape != right.shape:
        return Finding(what, "differs", f"shape {tuple(left.shape)}, diffusers {tuple(right.shape)}")
    if torch.equal(left, right):
        return Finding(what, "equal", f"{left.numel():,} values, bit for bit")
    apart = (left.double() - right.double()).abs()
    return Finding(
        what, "differs", f"{int((apart > 0).sum()):,} of {left.numel():,} values, by at most {apart.max():.3g}"
    )


def _empty_caches() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
