"""The demo's frozen text encoders: never trained, informative by construction.

The Qwen stand-in keeps every token apart (large random embeddings, small layers), so its last hidden state says which
words stand where. The CLIP stand-in averages its tokens into the end token (even attention, identity values), so its
pooled state is a bag of words. What the words mean is learnt by the transformer's own text blocks.
"""

from __future__ import annotations

import architecture
import torch
from transformers import CLIPTextConfig, CLIPTextModel, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration


def qwen(ids: dict[str, int]) -> Qwen2_5_VLForConditionalGeneration:
    """The text encoder for a tokenizer with special ids ``ids``; weights from torch's current seed."""
    specials = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    text = dict(architecture.QWEN_TEXT, vocab_size=_padded(ids["size"]), pad_token_id=ids["<|endoftext|>"], **specials)
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=architecture.QWEN_VISION,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if "embed_tokens" in name else 0.05)
        if "norm" in name:
            torch.nn.init.ones_(parameter)
    return model.eval()


def clip(ids: dict[str, int]) -> CLIPTextModel:
    """The pooled text encoder: its end token holds a random projection of the words in the prompt."""
    config = CLIPTextConfig(
        vocab_size=ids["size"],
        bos_token_id=ids["<|startoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        **architecture.CLIP,
    )
    model = CLIPTextModel(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.constant_(parameter, float("norm" in name and "weight" in name))
        else:
            torch.nn.init.normal_(parameter, std=1.0 if "token_embedding" in name else 0.02)
        if "v_proj.weight" in name or "out_proj.weight" in name:
            parameter.data.copy_(2.0 * torch.eye(len(parameter)))
    return model.eval()


def _padded(size: int) -> int:
    return -(-size // 64) * 64
