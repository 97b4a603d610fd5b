"""Engine: one checkpoint on one device, and the only place that knows the order of the stages.

request -> [ expand -> text -> image -> denoise -> decode -> mux ] -> Clip, with an event for every fact on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.clip import Clip
from yellowsound.events import CancelToken, OnEvent, Preview, StepDone
from yellowsound.memory.resident import Models
from yellowsound.metadata import clip_metadata
from yellowsound.recipe import Recipe
from yellowsound.request import ClipRequest, RequestError
from yellowsound.run import Run
from yellowsound.stages.decode import DecodePlan, decode_audio, decode_video, require_finite
from yellowsound.stages.denoise import StepResult, denoise
from yellowsound.stages.image import load_image
from yellowsound.stages.latents import Latents, audio_tokens, draw_latents, encode_image
from yellowsound.stages.mux import Mp4Writer, check_destination
from yellowsound.stages.preview import PreviewMap, strip_of
from yellowsound.stages.text import TextEmbeds, TextEncoders, default_negative_prompt, encode_prompt
from yellowsound.stages.text_store import TextStore
from yellowsound.weights.catalog import resolve
from yellowsound.weights.fingerprint import fingerprint
from yellowsound.weights.verify_shapes import check_against_models

PREVIEW_FROM_STEP = 2


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Where a clip's MP4 goes, if anywhere."""

    path: Path | None = None
    overwrite: bool = False
    audio_level: float | None = None

    def check(self) -> None:
        """Refuse a name that cannot be written before any work. Raises FileExistsError, RequestError or OSError."""
        if self.path is not None:
            check_destination(self.path, self.overwrite)


class Engine:
    """Makes clips from requests. Build it with ``Engine.load``; one thread at a time may call ``generate``."""

    def __init__(self, checkpoint: Checkpoint, models: Models, recipe: Recipe) -> None:
        self.checkpoint, self.models, self.recipe = checkpoint, models, recipe
        self.decode_plan: DecodePlan = "whole"
        encoder = "".join(fingerprint(checkpoint.components[name]) for name in ("text_encoder", "text_encoder_2"))
        self._texts = TextStore(encoder, models.device, models.dtype)
        self._preview_map = PreviewMap(fingerprint(checkpoint.components["vae"]))

    @classmethod
    def load(
        cls,
        checkpoint: str | Path | Checkpoint,
        *,
        device: str = "auto",
        dtype: str = "auto",
        recipe: Recipe | None = None,
    ) -> Engine:
        """Open and verify a checkpoint (a folder, ``demo``, or a published name) for one device.

        device: ``auto`` is the first GPU, else the CPU. dtype: ``auto`` is bfloat16 on a GPU, float32 on a CPU.
        Raises CheckpointError before a weight is used.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint.open(resolve(str(checkpoint)))
        checkpoint.require("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
        check_against_models(checkpoint)
        where = pick_device(device)
        return cls(checkpoint, Models(checkpoint, where, pick_dtype(dtype, where)), recipe or Recipe())

    @torch.no_grad()
    def generate(
        self,
        request: ClipRequest,
        *,
        on_event: OnEvent | None = None,
        cancel: CancelToken | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
        audio_level: float | None = None,
    ) -> Clip:
        """Make one clip. With ``out`` its MP4 is encoded while frames arrive and named when it is whole.

        Raises RequestError before work starts, Cancelled between blocks, FileExistsError for a taken ``out``.
        """
        file = FileOptions(None if out is None else Path(out), overwrite, audio_level)
        file.check()
        request = self._resolve(request)
        run = Run(on_event, cancel, self.models.device)
        for message in request.warnings:
            run.warn(message)
        generator = torch.Generator("cpu").manual_seed(request.seed or 0)
        self._load(request, run)
        texts = self._encode_texts(request, run)
        noise = self._draw(request, generator, run)
        latents = self._denoise(request, texts, noise, run)
        return self._decode(request, latents, run, file)

    @torch.no_grad()
    def encode_ahead(self, prompts: Sequence[str], cancel: CancelToken | None = None) -> None:
        """Encode prompts now, so that clips made from them later start denoising at once."""
        for prompt in prompts:
            (cancel or CancelToken()).check()
            self._text(prompt)

    def text_encoders(self) -> TextEncoders:
        """Qwen and CLIP with their tokenizers, loaded if they are not."""
        m = self.models
        return TextEncoders(m.tokenizer, m.qwen, m.clip_tokenizer, m.clip)

    def close(self) -> None:
        """Let go of every weight."""
        self.models.drop()

    def _resolve(self, request: ClipRequest) -> ClipRequest:
        request = request.resolve(self.checkpoint.defaults)
        if request.sample_audio and not self.checkpoint.has_audio:
            raise RequestError("sample_audio", True, "this checkpoint has no audio VAE or vocoder", False)
        return request

    def _load(self, request: ClipRequest, run: Run) -> None:
        """Bring in what this clip needs and is not there yet; a known prompt needs no text encoder."""
        needed = ["transformer", "scheduler", "vae", *(["audio_vae", "vocoder"] if request.sample_audio else [])]
        if any(self._texts.get(prompt) is None for prompt in self._prompts(request)):
            needed += ["tokenizer", "qwen", "clip_tokenizer", "clip"]
        if all(self.models.is_loaded(name) for name in needed):
            return
        with run.stage("load"):
            for name in needed:
                run.cancel.check()
                getattr(self.models, name)

    def _prompts(self, request: ClipRequest) -> list[str]:
        """What is encoded: the prompt and, with guidance, the text to steer away from."""
        if not request.guidance_scale or request.guidance_scale <= 1.0:
            return [request.prompt]
        negative = request.negative_prompt
        return [request.prompt, default_negative_prompt() if negative is None else negative]

    def _encode_texts(self, request: ClipRequest, run: Run) -> list[TextEmbeds]:
        with run.stage("text", *([self.models.qwen] if self.models.is_loaded("qwen") else [])):
            texts = [self._text(p).to(self.models.device, self.models.dtype) for p in self._prompts(request)]
        return [text.trimmed() for text in texts] if self.recipe.trim_text else texts

    def _text(self, prompt: str) -> TextEmbeds:
        known = self._texts.get(prompt)
        if known is not None:
            return known
        text = encode_prompt(prompt, self.text_encoders(), self.models.device)
        self._texts.put(prompt, text)
        return text

    def _draw(self, request: ClipRequest, generator: torch.Generator, run: Run) -> Latents:
        """Image stage and noise, in the pipeline's order of draws."""
        first_frame = None
        if request.image is not None:
            picture = load_image(request.image)
            for message in picture.warnings:
                run.warn(message)
            with run.stage("image", self.models.vae):
                first_frame = encode_image(picture.image, self.models.vae, request, self.models.dtype, generator)
        assert request.num_frames and request.frame_rate
        audio_length = None
        if request.sample_audio or self.checkpoint.variant == "piflow":  # a distilled checkpoint knows no silence
            audio_length = audio_tokens(request.num_frames, request.frame_rate)
        return draw_latents(
            request,
            self.models.transformer.config,
            first_frame=first_frame,
            audio_length=audio_length,
            dtype=self.models.transformer.dtype,
            device=self.models.device,
            generator=generator,
        )

    def _denoise(self, request: ClipRequest, texts: list[TextEmbeds], noise: Latents, run: Run) -> Latents:
        def on_step(result: StepResult) -> None:
            run.emit(StepDone(step=result.step, steps=result.steps, seconds=result.seconds))
            if result.step >= PREVIEW_FROM_STEP:
                strip, frames = strip_of(result.predicted_video()[0].cpu().numpy(), self._preview_map.value)
                run.emit(Preview(step=result.step, frames=frames, strip=strip))

        assert request.guidance_scale is not None and request.num_inference_steps
        with run.stage("denoise", self.models.transformer):
            return denoise(
                self.models.transformer,
                self.models.scheduler,
                noise,
                texts,
                request.guidance_scale,
                request.num_inference_steps,
                on_step=on_step,
            )

    def _decode(self, request: ClipRequest, latents: Latents, run: Run, file: FileOptions) -> Clip:
        """Sound first, since it is quick, then frames in chunks that are encoded while the next tile is decoded."""
        require_finite(latents)
        m, waveform, writer = self.models, None, None
        sound = [m.audio_vae, m.vocoder] if request.sample_audio else []
        with ExitStack() as stack:
            with run.stage("decode", m.vae, *sound):
                if request.sample_audio and latents.audio is not None:
                    waveform = decode_audio(latents.audio, m.audio_vae, m.vocoder)
                if file.path is not None:
                    writer = stack.enter_context(self._writer(request, waveform, run, file))
                frames = self._frames(latents, writer, run)
            if writer is not None:
                with run.stage("mux"):
                    writer.close()
        self._preview_map.learn(latents.video[0].float().cpu().numpy(), frames)
        return self._clip(request, frames, waveform, latents, run)

    def _frames(self, latents: Latents, writer: Mp4Writer | None, run: Run) -> npt.NDArray[np.uint8]:
        chunks = []
        for chunk in decode_video(latents, self.models.vae, self.decode_plan):
            run.cancel.check()
            chunks.append(chunk)
            if writer is not None:
                writer.write_frames(chunk)
        return np.concatenate(chunks)

    def _writer(self, request: ClipRequest, waveform: Any, run: Run, file: FileOptions) -> Mp4Writer:
        assert file.path is not None and request.width and request.height and request.num_frames and request.frame_rate
        writer = Mp4Writer(
            file.path,
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            frame_rate=request.frame_rate,
            sample_rate=None if waveform is None else self.sample_rate_hz,
            metadata=self._metadata(request, run),
            overwrite=file.overwrite,
            audio_level=file.audio_level,
        )
        if waveform is not None:
            writer.write_audio(waveform)
        return writer

    def _clip(self, request: ClipRequest, frames: Any, waveform: Any, latents: Latents, run: Run) -> Clip:
        assert request.frame_rate is not None
        return Clip(
            frames=frames,
            waveform=waveform,
            sample_rate=self.sample_rate_hz,
            frame_rate=request.frame_rate,
            metadata=self._metadata(request, run),
            latents=latents,
        )

    @property
    def sample_rate_hz(self) -> int:
        """Of the sound this checkpoint makes."""
        audio = self.checkpoint.components.get("audio_vae")
        return int(audio.config.get("sample_rate", 44_100)) if audio else 44_100

    def _metadata(self, request: ClipRequest, run: Run) -> dict[str, Any]:
        return clip_metadata(
            request,
            run,
            checkpoint=self.checkpoint,
            recipe=self.recipe,
            device=str(self.models.device),
            dtype=str(self.models.dtype).removeprefix("torch."),
            decode_plan=self.decode_plan,
        )


def pick_device(device: str) -> torch.device:
    """``auto`` is the first GPU, else the CPU; anything else is torch's own name. Raises RequestError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError:
        raise RequestError("device", device, "is no device name", "auto, cpu, cuda or cuda:1") from None
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise RequestError("device", device, f"this machine has {torch.cuda.device_count()} CUDA devices", "cpu")
    return where


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU. Raises RequestError."""
    names = {"auto": torch.bfloat16 if device.type == "cuda" else torch.float32}
    names |= {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp32": torch.float32, "float32": torch.float32}
    if dtype not in names:
        raise RequestError("dtype", dtype, "is no dtype this engine runs", "auto, bfloat16 or float32")
    return names[dtype]
