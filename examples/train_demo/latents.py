"""Captioned latents for the transformer: clips drawn, encoded once and kept on the device, renewed bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import captions
import parts
import render
import torch
from diffusers import AutoencoderKLHunyuanVideo, MMAudioVAE
from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock
from torch import Tensor
from transformers import AutoTokenizer, CLIPTextModel, Qwen2_5_VLForConditionalGeneration

from yellowsound.demo import world

KEPT = "store.pt"
TEXT_TOKENS = 48  # longest caption, the pipeline's negative prompt and their end tokens
SETTINGS: dict[str, Any] = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
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
    def __call__(self, prompts: Sequence[str], chunk: int = 1024) -> Text:
        known = {text: i for i, text in enumerate(dict.fromkeys(prompts))}
        texts, where = list(known), torch.tensor([known[p] for p in prompts], device=self.device)
        rows = [self._encode(texts[i : i + chunk]) for i in range(0, len(texts), chunk)]
        return Text(*(torch.cat([getattr(r, n) for r in rows])[where] for n in ("tokens", "mask", "pooled")))

    def _encode(self, prompts: Sequence[str]) -> Text:
        tokens, mask = self.tokens(prompts)
        return Text(tokens, mask, self.pooled(prompts, whole=True))

    def tokens(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The first encoder's states (N, TEXT_TOKENS, width) after the template's, and their mask."""
        texts = [stock._PROMPT_TEMPLATE.format(p) for p in prompts]
        ids = self.tokenizers[0](texts, max_length=stock._QWEN_CROP_START + TEXT_TOKENS, **SETTINGS).to(self.device)
        hidden = self.qwen.model(**ids, use_cache=False).last_hidden_state[:, stock._QWEN_CROP_START :]
        return hidden.float(), ids["attention_mask"][:, stock._QWEN_CROP_START :].bool()

    def pooled(self, prompts: Sequence[str], *, whole: bool = False) -> Tensor:
        """The second encoder's pooled states (N, width); ``whole`` pads as the pipeline does, which changes nothing."""
        settings = SETTINGS | ({} if whole else {"padding": "longest"})
        state: Tensor = self.clip(**self.tokenizers[1](list(prompts), max_length=77, **settings).to(self.device))[1]
        return state.float()


class Encoder:
    """The frozen autoencoders' encoding half: from scenes to the transformer's latents."""

    def __init__(self, work: Path, device: str, window: render.Window = render.WHOLE) -> None:
        common = work / "common"
        self.device, self.window = device, window
        self.vae = parts.load(AutoencoderKLHunyuanVideo, common / "vae", device).eval()
        self.vae.to(torch.bfloat16 if device == "cuda" else torch.float32)
        self.audio_vae = parts.load(MMAudioVAE, common / "audio_vae", device).eval()
        weights = [*self.vae.encoder.parameters(), *self.vae.quant_conv.parameters()]
        weights += self.audio_vae.vae.encoder.parameters()
        total = float(sum(w.detach().double().abs().sum() for w in weights))
        self.mark = f"{total!r} {window} {_world()}"  # tells these weights and clips from others

    @torch.no_grad()
    def __call__(self, batch: render.Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Video (B, 13, 16, 24, 16), audio (B, 88, 40) and image latents (B, 16, 24, 16), channels last, scaled."""
        video = encode_tiles(self.vae, render.whole_clip(batch, self.window).to(self.vae.dtype))
        audio = self.audio_vae.vae.encode(self.audio_vae.mel_converter(render.sound(batch))).chunk(2, dim=1)[0]
        video = video.float() * self.vae.config.scaling_factor
        audio = audio * self.audio_vae.config.scaling_factor
        return video.permute(0, 2, 3, 4, 1), audio.permute(0, 2, 1), self.image(batch)

    @torch.no_grad()
    def image(self, batch: render.Batch) -> Tensor:
        """Latents (B, 16, 24, 16) of the pictures that the clips start from, sampled as the pipeline does."""
        drawn = picture(batch, self.window).to(self.vae.dtype)
        latents = self.vae.encode(drawn).latent_dist.sample().float() * self.vae.config.scaling_factor
        first: Tensor = latents[:, :, 0].permute(0, 2, 3, 1)
        return first


def _world() -> str:
    """Hash of the code that says what clips look, sound and are called like."""
    sources = (world.__file__, captions.__file__, render.__file__)
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in sources)).hexdigest()


def encode_tiles(vae: Any, video: Tensor) -> Tensor:
    """Mean latents of clips of 49 frames, (B, 16, 13, h, w): the stock tiled encoding, its full tiles in one batch."""
    tiles = torch.cat([video[:, :, start : start + 17] for start in (0, 12, 24)])
    full = vae.quant_conv(vae.encoder(tiles)).chunk(2, dim=1)[0].chunk(3)
    rest: Tensor = vae.quant_conv(vae.encoder(video[:, :, 36:])).chunk(2, dim=1)[0]
    return torch.cat([full[0], full[1][:, :, 2:], full[2][:, :, 2:], rest[:, :, 2:]], dim=2)


def picture(batch: render.Batch, window: render.Window = render.WHOLE) -> Tensor:
    """The picture a clip starts from, (B, 3, 1, H, W): its first frame."""
    return render.draw(batch, torch.zeros(1), window)


class Store:
    """Encoded clips with their captions, on the device: some to begin with, ``renew`` adds more, then replaces."""

    def __init__(
        self, scenes: render.Batch, text: Text, image_text: Text, encoder: Encoder, *, first: int, chunk: int
    ) -> None:
        self.encoder, self.chunk, self.next = encoder, chunk, 0
        self.scenes, self.text, self.image_text = scenes.to(encoder.device), text, image_text
        self.kept = len(scenes) // chunk * chunk
        shapes = [x.shape[1:] for x in encoder(self.scenes[:2])]
        self.video, self.audio, self.image = (
            torch.empty((self.kept, *s), device=encoder.device, dtype=torch.bfloat16) for s in shapes
        )
        self.owner = torch.zeros(self.kept, dtype=torch.long, device=encoder.device)
        for _ in range(max(min(first, self.kept) // chunk, 1)):
            self.renew()

    @property
    def filled(self) -> int:
        return min(self.next, self.kept)

    def renew(self) -> None:
        """Encode the next ``chunk`` scenes; when all are there, with fresh chances in place of the oldest."""
        rows = torch.arange(self.next, self.next + self.chunk, device=self.owner.device)
        source, place = rows % len(self.scenes), rows % self.kept
        batch = self.scenes[source]
        if self.next >= len(self.scenes):
            chance = {name: torch.rand_like(batch.x) for name in ("x", "y", "size", "pitch")}
            batch = render.Batch(**{**vars(batch), **chance, "phase": 0.44 + 0.12 * torch.rand_like(batch.x)})
        self.video[place], self.audio[place], self.image[place] = (x.bfloat16() for x in self.encoder(batch))
        self.owner[place] = source
        self.next += self.chunk

    def sample(self, number: int, *, with_image: bool) -> tuple[Tensor, Tensor, Tensor | None, Text]:
        """Random clips: video, audio, image latents (or None) as float32, and a wording for each."""
        device = self.owner.device
        rows = torch.randint(self.filled, (number,), device=device)
        wording = self.owner[rows] * captions.WORDINGS + torch.randint(captions.WORDINGS, (number,), device=device)
        image = self.image[rows].float() if with_image else None
        text = (self.image_text if with_image else self.text)[wording]
        return self.video[rows].float(), self.audio[rows].float(), image, text


def new_store(
    work: Path, text: TextEncoders, clips: int, seed: int, wait: Callable[[], None], window: render.Window, **sizes: int
) -> Store:
    """Caption ``clips`` scenes, encode the captions, ``wait`` for the autoencoders, encode the first clips.

    Where ``work`` holds clips of the same encoders and the same world (``keep``), those are taken instead.
    """
    if (work / KEPT).exists():
        wait()
        kept = torch.load(work / KEPT, map_location=text.device, weights_only=False)
        encoder = Encoder(work, text.device, window)
        if kept.pop("mark") == encoder.mark:
            return _restored(encoder, **kept)
        print(f"{work / KEPT}: made by other encoders or of another world, not used", flush=True)
    made = captions.captioned(clips, seed)
    words, image_words = (text([p.text for p in which]) for which in (made.prompts, made.image_prompts))
    wait()
    scenes = render.batch_of(made.scenes, made.chances)
    return Store(scenes, words, image_words, Encoder(work, text.device, window), **sizes)


def keep(store: Store, work: Path) -> None:
    """Write the clips encoded so far, with the mark of their encoders and world, for other stages to begin with."""
    kept = {name: getattr(store, name) for name in ("scenes", "text", "image_text", "video", "audio", "image", "owner")}
    numbers = {"next": store.next, "chunk": store.chunk, "mark": store.encoder.mark}
    torch.save({**kept, **numbers}, work / f".{KEPT}")
    (work / f".{KEPT}").rename(work / KEPT)


def _restored(encoder: Encoder, **kept: Any) -> Store:
    store = Store.__new__(Store)
    for name, value in kept.items():
        setattr(store, name, value)
    store.encoder, store.kept = encoder, len(store.video)
    return store
