"""Engine: one checkpoint on one device, and the only place that knows the order of the stages.

request -> plan -> [ expand -> text -> image -> denoise -> decode -> mux ] -> Clip, with an event for every fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.clip import Clip
from yellowsound.events import CancelToken, OnEvent, Preview, StepDone
from yellowsound.memory.geometry import Offload
from yellowsound.memory.lora import Lora
from yellowsound.memory.peaks import PeakStage
from yellowsound.memory.plan import Plan
from yellowsound.memory.resident import STAGE_PARTS, TEXT_PARTS, Models
from yellowsound.memory.stack import end_clip, predict, prepare_clip, set_cancel, set_listener
from yellowsound.metadata import clip_metadata
from yellowsound.recipe import Recipe
from yellowsound.request import ClipRequest, RequestError
from yellowsound.residency import DTYPE_WORDS, Limits, Residency, pick_device, pick_dtype
from yellowsound.run import Run
from yellowsound.stages.cancel import cancellable
from yellowsound.stages.decode import decode_audio, decode_video, require_finite
from yellowsound.stages.delivery import Delivery
from yellowsound.stages.denoise import StepResult, denoise
from yellowsound.stages.expand import expand, load_image_processor
from yellowsound.stages.image import load_image
from yellowsound.stages.latents import Latents, audio_tokens, draw_latents, encode_image
from yellowsound.stages.preview import PreviewMap, strip_of
from yellowsound.stages.text import TextEmbeds, TextEncoders, default_negative_prompt, encode_prompt
from yellowsound.stages.text_store import TextStore
from yellowsound.weights.catalog import resolve
from yellowsound.weights.fingerprint import fingerprint
from yellowsound.weights.verify_shapes import check_against_models

PREVIEW_FROM_STEP = 2


class Engine:
    """Makes clips from requests. Build it with ``Engine.load``; one thread at a time may call ``generate``."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self.checkpoint, self.recipe = residency.checkpoint, residency.recipe
        parts = self.checkpoint.components
        encoder = "".join(fingerprint(parts[n]) for n in ("text_encoder", "text_encoder_2") if n in parts)
        self._texts = TextStore(encoder, residency.device, residency.dtype)
        self._preview_map = PreviewMap(fingerprint(parts["vae"]))

    @classmethod
    def load(
        cls,
        checkpoint: str | Path | Checkpoint,
        *,
        device: str = "auto",
        dtype: str = "auto",
        recipe: Recipe | None = None,
        vram_bytes: int | None = None,
        ram_bytes: int | None = None,
        offload: Offload = "auto",
        loras: Sequence[str] = (),
    ) -> Engine:
        """Open and verify a checkpoint (a folder, ``demo``, or a published name) for one device.

        device: ``auto`` is the first GPU, else the CPU. dtype: ``auto`` is bfloat16 on a GPU, float32 on a CPU.
        vram_bytes, ram_bytes: the most that may be taken; on a card the first binds torch in this whole process.
        loras: ``FILE`` or ``FILE:0.8``. Nothing is loaded before the first request is planned. Raises CheckpointError,
        RequestError, LoraError.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint.open(resolve(str(checkpoint)))
        checkpoint.require("vae")
        check_against_models(checkpoint)
        where = pick_device(device)
        limits = Limits(vram_bytes, ram_bytes, offload, tuple(Lora.parse(text) for text in loras))
        return cls(Residency(checkpoint, where, pick_dtype(dtype, where), recipe or Recipe(), limits))

    @property
    def models(self) -> Models:
        """The networks as the plan in force has them."""
        return self._residency.models

    def plan(self, request: ClipRequest) -> Plan:
        """Where everything would live for this request, and what to expect. Raises PlanError, RequestError."""
        return self._residency.plan(self._resolve(request))

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

        Raises RequestError or PlanError before work starts, FileExistsError for a taken ``out``, Cancelled between
        blocks. Whatever it raises, no file is left and the engine can be used again.
        """
        delivery = Delivery(None if out is None else Path(out), overwrite, audio_level)
        delivery.check()
        request = self._resolve(request)
        run = Run(on_event, cancel, self._residency.device)
        for message in request.warnings:
            run.warn(message)
        picture = self._picture(request, run)
        plan = self._residency.settle(request, run)
        generator = torch.Generator("cpu").manual_seed(request.seed or 0)
        try:
            request = self._expand(request, picture, run)
            texts = self._encode_texts(request, run)
            noise = self._draw(request, picture, generator, run)
            latents = self._denoise(request, texts, noise, run)
            return self._decode(request, latents, plan, run, delivery)
        finally:  # a stage that was left by an error still holds its parts
            self.models.leave(*STAGE_PARTS)

    @torch.no_grad()
    def encode_ahead(self, requests: Sequence[ClipRequest | str], cancel: CancelToken | None = None) -> None:
        """Encode prompts now, so that their clips start denoising at once; what will be expanded first is left out.

        Between clips only, unless ``encodes_beside_a_job``: a plan counts the encoder and the denoising loop one after
        the other, so calling this beside a running clip would take memory that is not there.
        """
        wanted = [r if isinstance(r, ClipRequest) else ClipRequest(prompt=r) for r in requests]
        texts = {t: r for r in wanted if not r.expand_prompt for t in self._prompts(self._resolve(r))}
        unknown = [text for text in texts if self._texts.get(text) is None]
        if not unknown:
            return
        if self._residency.current is None:
            request = self._resolve(texts[unknown[0]])
            self._residency.settle(request, Run(None, cancel, self._residency.device))
        cancel = cancel or CancelToken()
        try:
            with cancellable(cancel, self.models.qwen, self.models.clip):
                for text in unknown:
                    cancel.check()
                    self._text(text)
        finally:
            self.models.leave("qwen", "clip")

    @property
    def encodes_beside_a_job(self) -> bool:
        """Whether another thread may call ``encode_ahead`` while a clip denoises: where every part stays in memory."""
        return self._residency.current is not None and self.models.holds_everything

    def text_encoders(self) -> TextEncoders:
        """Qwen and CLIP with their tokenizers, loaded if they are not."""
        m = self.models
        return TextEncoders(m.tokenizer, m.qwen, m.clip_tokenizer, m.clip)

    def close(self) -> None:
        """Let go of every weight, thread and file."""
        self.models.drop()

    @property
    def sample_rate_hz(self) -> int:
        """Of the sound this checkpoint makes."""
        audio = self.checkpoint.components.get("audio_vae")
        return int(audio.config.get("sample_rate", 44_100)) if audio else 44_100

    def _resolve(self, request: ClipRequest) -> ClipRequest:
        request = request.resolve(self.checkpoint.defaults)
        if request.sample_audio and not self.checkpoint.has_audio:
            raise RequestError("sample_audio", True, "this checkpoint has no audio VAE or vocoder", False)
        return request

    def _ready(self, run: Run, *names: str) -> None:
        """Bring in the parts that the next stage needs and that are not there yet."""
        missing = [name for name in names if not self.models.is_loaded(name)]
        if missing:
            with run.stage("load"):
                for name in missing:
                    run.cancel.check()
                    getattr(self.models, name)

    def _picture(self, request: ClipRequest, run: Run) -> Any:
        if request.image is None:
            return None
        picture = load_image(request.image)
        for message in picture.warnings:
            run.warn(message)
        return picture.image

    def _expand(self, request: ClipRequest, picture: Any, run: Run) -> ClipRequest:
        """The prompt as the model writes it out, if that was asked for; it is what is encoded and reported."""
        if not request.expand_prompt:
            return request
        self._ready(run, "tokenizer")
        with run.stage("expand"), self.models.generating() as qwen, cancellable(run.cancel, qwen):
            text = expand(
                request.prompt,
                self.models.tokenizer,
                qwen,
                seed=request.seed or 0,
                device=self.models.device,
                image=picture,
                image_processor=None if picture is None else load_image_processor(self.checkpoint.folder / "tokenizer"),
                check_cancel=run.cancel.check,
            )
        try:
            return replace(request, prompt=text, expanded_from=request.prompt)
        except RequestError as error:  # blank, as a rule: a sampled text may be anything
            run.warn(f"expand_prompt: the model wrote no usable prompt ({error.problem}); yours is taken as it is")
            return request

    def _encode_texts(self, request: ClipRequest, run: Run) -> list[TextEmbeds]:
        """The prompt and, with guidance, the text to steer away from; a known prompt needs no encoder."""
        prompts = self._prompts(request)
        unknown = any(self._texts.get(prompt) is None for prompt in prompts)
        if unknown:
            self.checkpoint.require("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
            self._ready(run, *TEXT_PARTS, *self.models.wanted_early)
            self.models.read_ahead()
        noting = self._residency.noting_peak("text", request, run) if unknown else nullcontext()
        with run.stage("text", *([self.models.qwen, self.models.clip] if unknown else [])), noting:
            texts = [self._text(p).to(self.models.device, self.models.dtype) for p in prompts]
            self.models.leave("qwen", "clip")
        return [text.trimmed() for text in texts] if self.recipe.trim_text else texts

    def _prompts(self, request: ClipRequest) -> list[str]:
        if not request.guidance_scale or request.guidance_scale <= 1.0:
            return [request.prompt]
        negative = request.negative_prompt
        return [request.prompt, default_negative_prompt() if negative is None else negative]

    def _text(self, prompt: str) -> TextEmbeds:
        known = self._texts.get(prompt)
        if known is None:
            known = encode_prompt(prompt, self.text_encoders(), self.models.device)
            self._texts.put(prompt, known)
        return known

    def _draw(self, request: ClipRequest, picture: Any, generator: torch.Generator, run: Run) -> Latents:
        """Image stage and noise, in the pipeline's order of draws."""
        first_frame = None
        if picture is not None:
            self._ready(run, "vae")
            with run.stage("image", self.models.vae), self._residency.noting_peak("image", request, run):
                first_frame = encode_image(picture, self.models.vae, request, self.models.dtype, generator)
                self.models.leave("vae")
        assert request.num_frames and request.frame_rate
        audio_length = None
        if request.sample_audio or self.checkpoint.variant == "piflow":  # a distilled checkpoint knows no silence
            audio_length = audio_tokens(request.num_frames, request.frame_rate)
        return draw_latents(
            request,
            self.checkpoint.components["transformer"].config,
            first_frame=first_frame,
            audio_length=audio_length,
            dtype=self.models.dtype,
            device=self.models.device,
            generator=generator,
        )

    def _denoise(self, request: ClipRequest, texts: list[TextEmbeds], noise: Latents, run: Run) -> Latents:
        assert request.guidance_scale is not None and request.num_inference_steps
        self._ready(run, "transformer", "scheduler")
        transformer = self.models.transformer
        set_cancel(transformer, run.cancel)
        set_listener(transformer, run.emit)
        try:
            with run.stage("denoise", transformer), self._residency.noting_peak("denoise", request, run):
                return denoise(
                    transformer,
                    self.models.scheduler,
                    noise,
                    texts,
                    request.guidance_scale,
                    request.num_inference_steps,
                    predict=predict,
                    prepare=partial(prepare_clip, transformer),
                    on_step=partial(self._tell_step, run),
                )
        finally:
            end_clip(transformer)

    def _tell_step(self, run: Run, result: StepResult) -> None:
        run.emit(StepDone(step=result.step, steps=result.steps, seconds=result.seconds))
        if result.step >= PREVIEW_FROM_STEP:
            strip, frames = strip_of(result.predicted_video()[0].cpu().numpy(), self._preview_map.value)
            run.emit(Preview(step=result.step, frames=frames, strip=strip))

    def _decode(self, request: ClipRequest, latents: Latents, plan: Plan, run: Run, delivery: Delivery) -> Clip:
        """Sound first, since it is quick, then frames in chunks that are encoded while the next tile is decoded."""
        require_finite(latents)
        self.models.read_ahead()  # for the next clip: the disk and the link are idle now
        sound = ("audio_vae", "vocoder") if request.sample_audio else ()
        self._ready(run, "vae", *sound)
        m, waveform, writer, chunks = self.models, None, None, []
        with ExitStack() as stack:
            with run.stage("decode", m.vae, *(getattr(m, name) for name in sound)):
                if latents.audio is not None and sound:
                    with self._residency.noting_peak("audio", request, run):
                        waveform = decode_audio(latents.audio, m.audio_vae, m.vocoder)
                    m.leave(*sound)
                if delivery.path is not None:
                    opened = delivery.open(request, waveform, self.sample_rate_hz, self._metadata(request, plan, run))
                    writer = stack.enter_context(opened)
                decoding: PeakStage = "decode_whole" if plan.vae_decode == "whole" else "decode_tiled"
                with self._residency.noting_peak(decoding, request, run):
                    for chunk in decode_video(latents, m.vae, plan.vae_decode):
                        run.cancel.check()
                        chunks.append(chunk)
                        if writer is not None:
                            writer.write_frames(chunk)
            m.leave("vae")
            if writer is not None:
                with run.stage("mux"):
                    writer.close()
        frames = np.concatenate(chunks)
        self._preview_map.learn(latents.video[0].float().cpu().numpy(), frames)
        assert request.frame_rate is not None
        metadata = self._metadata(request, plan, run)
        return Clip(frames, waveform, self.sample_rate_hz, request.frame_rate, metadata, latents)

    def _metadata(self, request: ClipRequest, plan: Plan, run: Run) -> dict[str, Any]:
        return clip_metadata(
            request,
            run,
            checkpoint=self.checkpoint,
            recipe=self.recipe,
            device=str(self.models.device),
            dtype=DTYPE_WORDS[self.models.dtype],
            plan=plan,
            loras=self._residency.limits.loras,
        )
