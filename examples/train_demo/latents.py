"""Captioned latents for the transformer: clips drawn, encoded once and kept on the device, renewed bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parts
import render
import torch
from captions import WORDINGS, Captioned
from diffusers import AutoencoderKLHunyuanVideo, MMAudioVAE
from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock
from progress import autocast
from torch import Tensor
from transformers import AutoTokenizer, CLIPTextModel, Qwen2_5_VLForConditionalGeneration

TEXT_TOKENS = 48  # longest caption, the pipeline's negative prompt and their end tokens
NEGATIVE = stock.Kandinsky6TI2VAPipeline._DEFAULT_NEGATIVE_PROMPT


@dataclass
class Text:
    """Encoded prompts: tokens (N, TEXT_TOKENS, width), mask (N, TEXT_TOKENS), pooled (N, width)."""

    tokens: Tensor
    mask: Tensor
    pooled: Tensor

    def __getitem__(self, index: Tensor | slice) -> Text:
        return Text(self.tokens[index], self.mask[index], self.pooled[index])

    def where(self, chosen: Tensor, other: Text) -> Text:
        """``other`` (one prompt) in place of the rows that are ``chosen``."""
        return Text(
            torch.where(chosen[:, None, None], other.tokens, self.tokens),
            torch.where(chosen[:, None], other.mask, self.mask),
            torch.where(chosen[:, None], other.pooled, self.pooled),
        )


class TextEncoders:
    """The frozen encoders, called as the pipeline calls them, without its padding to 1,024 tokens."""

    def __init__(self, work: Path, device: str) -> None:
        common = work / "common"
        self.device = device
        self.tokenizers = [AutoTokenizer.from_pretrained(common / name) for name in ("tokenizer", "tokenizer_2")]
        qwen = Qwen2_5_VLForConditionalGeneration.from_pretrained(common / "text_encoder", dtype=torch.float32)
        self.qwen: Any = qwen.to(device).eval()
        self.clip = CLIPTextModel.from_pretrained(common / "text_encoder_2", dtype=torch.float32).to(device).eval()

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], chunk: int = 2048) -> Text:
        rows = [self._encode(prompts[i : i + chunk]) for i in range(0, len(prompts), chunk)]
        return Text(*(torch.cat([getattr(r, name) for r in rows]) for name in ("tokens", "mask", "pooled")))

    def _encode(self, prompts: Sequence[str]) -> Text:
        whole = stock._QWEN_CROP_START + TEXT_TOKENS
        texts = [stock._PROMPT_TEMPLATE.format(p) for p in prompts]
        settings = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
        ids = self.tokenizers[0](texts, max_length=whole, **settings).to(self.device)
        hidden = self.qwen.model(**ids, use_cache=False).last_hidden_state[:, stock._QWEN_CROP_START :]
        words = self.tokenizers[1](list(prompts), max_length=77, **settings).to(self.device)
        mask = ids["attention_mask"][:, stock._QWEN_CROP_START :].bool()
        return Text(hidden.float(), mask, self.clip(**words).pooler_output.float())


class Encoder:
    """The frozen autoencoders' encoding half: from scenes to the transformer's latents."""

    def __init__(self, work: Path, device: str, window: render.Window = render.WHOLE) -> None:
        common = work / "common"
        self.device, self.window = device, window
        self.vae = parts.load(AutoencoderKLHunyuanVideo, common / "vae", device).eval()
        self.audio_vae = parts.load(MMAudioVAE, common / "audio_vae", device).eval()

    @torch.no_grad()
    def __call__(self, batch: render.Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Video (B, 13, 16, 24, 16), audio (B, 88, 40) and image latents (B, 16, 24, 16), channels last, scaled."""
        with autocast(self.device):
            video = self.vae.encode(render.whole_clip(batch, self.window)).latent_dist.mode()
            image = self.vae.encode(picture(batch, self.window)).latent_dist.sample()
        audio = self.audio_vae.vae.encode(self.audio_vae.mel_converter(render.sound(batch))).chunk(2, dim=1)[0]
        video, image = (x * self.vae.config.scaling_factor for x in (video, image))
        audio = audio * self.audio_vae.config.scaling_factor
        return video.permute(0, 2, 3, 4, 1).float(), audio.permute(0, 2, 1).float(), image[:, :, 0].permute(0, 2, 3, 1)


def picture(batch: render.Batch, window: render.Window = render.WHOLE) -> Tensor:
    """The picture a clip starts from, (B, 3, 1, H, W): the first frame, or one with the object where it blinks."""
    blinking = batch.motion == render.BLINK
    period = batch.count.clamp(min=1)
    still = render.Batch(**{**vars(batch), "phase": torch.where(blinking, 1.1, batch.phase), "count": period})
    return render.draw(still, torch.zeros(1), window)


class Store:
    """A ring of encoded clips with their captions, on the device; ``renew`` replaces the oldest ones."""

    def __init__(self, captions: Captioned, text: TextEncoders, encoder: Encoder, kept: int, chunk: int) -> None:
        self.encoder, self.chunk, self.next = encoder, chunk, 0
        self.scenes = render.batch_of(captions.scenes, captions.chances).to(encoder.device)
        self.text = text([p.text for p in captions.prompts])
        self.image_text = text([p.text for p in captions.image_prompts])
        self.kept = min(kept, len(captions.scenes)) // chunk * chunk
        shapes = [x.shape[1:] for x in encoder(self.scenes[:2])]
        self.video, self.audio, self.image = (
            torch.empty((self.kept, *s), device=encoder.device, dtype=torch.bfloat16) for s in shapes
        )
        self.owner = torch.zeros(self.kept, dtype=torch.long, device=encoder.device)
        for _ in range(self.kept // chunk):
            self.renew()

    def renew(self) -> None:
        """Encode the next ``chunk`` scenes, with fresh chances each time round, in place of the oldest."""
        rows = torch.arange(self.next, self.next + self.chunk, device=self.owner.device)
        source, place = rows % len(self.scenes), rows % self.kept
        batch = self.scenes[source]
        if self.next >= len(self.scenes):
            chance = {name: torch.rand_like(batch.x) for name in ("x", "y", "size", "pitch")}
            batch = render.Batch(**{**vars(batch), **chance, "phase": 0.38 + 0.24 * torch.rand_like(batch.x)})
        self.video[place], self.audio[place], self.image[place] = (x.bfloat16() for x in self.encoder(batch))
        self.owner[place] = source
        self.next += self.chunk

    def sample(self, number: int, *, with_image: bool) -> tuple[Tensor, Tensor, Tensor | None, Text]:
        """Random clips: video, audio, image latents (or None) as float32, and a wording for each."""
        device = self.owner.device
        rows = torch.randint(self.kept, (number,), device=device)
        wording = self.owner[rows] * WORDINGS + torch.randint(WORDINGS, (number,), device=device)
        image = self.image[rows].float() if with_image else None
        text = (self.image_text if with_image else self.text)[wording]
        return self.video[rows].float(), self.audio[rows].float(), image, text
