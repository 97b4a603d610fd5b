"""The text stage: a prompt becomes Qwen2.5-VL token embeddings, a CLIP pooled embedding and a padding mask.

Bit-equal to diffusers' ``Kandinsky6TI2VAPipeline.encode_prompt``, without its logits: the inner Qwen model is called
and its last hidden state read, which saves 1,153 rows of vocabulary-sized products. Knows prompts and encoders only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

MAX_PROMPT_TOKENS = 1024
CLIP_TOKENS = 77


@dataclass(frozen=True, slots=True)
class TextEmbeds:
    """One prompt, encoded: ``tokens`` (1, L, D), ``pooled`` (1, P), ``mask`` bool (1, L) or None without padding."""

    tokens: Tensor
    pooled: Tensor
    mask: Tensor | None

    def to(self, device: torch.device, dtype: torch.dtype) -> TextEmbeds:
        """The embeddings on ``device`` in the transformer's ``dtype``; the mask stays bool."""
        mask = None if self.mask is None else self.mask.to(device)
        return TextEmbeds(self.tokens.to(device, dtype), self.pooled.to(device, dtype), mask)

    def trimmed(self) -> TextEmbeds:
        """Right padding cut off instead of masked: same arithmetic, other order of summation (level reordered)."""
        if self.mask is None:
            return self
        return replace(self, tokens=self.tokens[:, : int(self.mask.sum())], mask=None)


@dataclass(frozen=True, slots=True)
class TextEncoders:
    """The two encoders with their tokenizers; ``qwen`` is the ForConditionalGeneration model, as stored."""

    tokenizer: Any
    qwen: Any
    clip_tokenizer: Any
    clip: Any


@lru_cache(maxsize=1)
def prompt_template() -> tuple[str, int]:
    """diffusers' Qwen template and the count of its leading tokens, which carry no prompt.

    Read from the pipeline's module: the model was trained on these characters, typos included.
    """
    from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock

    return stock._PROMPT_TEMPLATE, stock._QWEN_CROP_START


def default_negative_prompt() -> str:
    """The text that guidance steers away from when a request says nothing."""
    from diffusers import Kandinsky6TI2VAPipeline

    return str(Kandinsky6TI2VAPipeline._DEFAULT_NEGATIVE_PROMPT)


def encode_prompt(prompt: str, encoders: TextEncoders, device: torch.device) -> TextEmbeds:
    """Encode one prompt: (1, 1024, D) tokens, (1, P) pooled, bool mask (1, 1024), in the encoders' dtype."""
    template, prefix_tokens = prompt_template()
    inputs = encoders.tokenizer(
        text=[template.format(prompt)],
        max_length=MAX_PROMPT_TOKENS + prefix_tokens,
        truncation=True,
        return_tensors="pt",
        padding="max_length",
    ).to(device)
    hidden = encoders.qwen.model(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
    ).last_hidden_state
    mask = inputs["attention_mask"][:, prefix_tokens:].to(torch.bool)
    clip_inputs = encoders.clip_tokenizer(
        [prompt],
        max_length=CLIP_TOKENS,
        truncation=True,
        add_special_tokens=True,
        padding="max_length",
        return_tensors="pt",
    ).to(device)
    pooled = encoders.clip(**clip_inputs)["pooler_output"]
    return TextEmbeds(hidden[:, prefix_tokens:], pooled, None if bool(mask.all()) else mask)
