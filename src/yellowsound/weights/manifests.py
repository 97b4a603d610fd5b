"""The parts of a published checkpoint without its files: enough to plan with before anything is downloaded. No torch.

The transformer's tensors are exact (names, shapes, stored dtypes); the text encoder's follow the public Qwen2.5-VL-7B
architecture; of the small parts only the number of weights is known, so each is one stand-in tensor. Files and offsets
do not exist: nothing can be read through these entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

from yellowsound.checkpoint import Component, TensorEntry
from yellowsound.request import Variant
from yellowsound.weights.catalog import CATALOG, find
from yellowsound.weights.shapes import Stored, transformer_config, transformer_tensors

ITEM_BYTES = {"F32": 4, "BF16": 2}
QWEN_CONFIG: dict[str, Any] = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064,
}  # fmt: skip
QWEN_VISION_WEIGHTS = 676_550_144
# Weights at the classes' defaults, and those of CLIP ViT-L/14's text half. Stored dtypes assumed float32: with them a
# repository's parts come to 19.8 GB beside the transformer, where the published sums leave 20.3 GB.
SMALL_PARTS: dict[str, tuple[str, int]] = {
    "text_encoder_2": ("CLIPTextModel", 123_060_480),
    "vae": ("AutoencoderKLHunyuanVideo", 246_500_000),
    "audio_vae": ("MMAudioVAE", 305_500_000),
    "vocoder": ("MMAudioVocoder", 122_200_000),
}


def is_published(name: str) -> bool:
    """Whether ``components_for`` knows ``name``."""
    entry = find(name)
    return entry is not None and entry.task == "generate"


def components_for(name: str) -> dict[str, Component]:
    """Parts of the published checkpoint ``name``, by their folder names. Raises KeyError for any other name."""
    entry = find(name)
    if entry is None or entry.task != "generate":
        known = ", ".join(e.name for e in CATALOG if e.task == "generate")
        raise KeyError(f"{name}: not a published checkpoint that makes clips; known: {known}")
    size = cast(Literal["pro", "lite"], entry.name.partition("-")[0])
    variant: Variant = "piflow" if entry.name.endswith("distill") else "flow"
    config = transformer_config(size, variant)
    parts = {
        "text_encoder": _component(
            "text_encoder", "Qwen2_5_VLForConditionalGeneration", {"text_config": QWEN_CONFIG}, dict(_qwen())
        ),
        "transformer": _component(
            "transformer", "Kandinsky6Transformer3DModel", config, transformer_tensors(config, variant)
        ),
    }
    small = {
        n: _component(n, class_name, {}, {"all": ("F32", (count,))}) for n, (class_name, count) in SMALL_PARTS.items()
    }
    return parts | small


def _component(name: str, class_name: str, config: dict[str, Any], stored: Stored) -> Component:
    tensors = {}
    offset = 0
    for tensor, (dtype, shape) in stored.items():
        size = math.prod(shape) * ITEM_BYTES[dtype]
        tensors[tensor] = TensorEntry(tensor, dtype, shape, Path(), offset, size)
        offset += size
    return Component(name, Path(), class_name, config, tensors)


def _qwen() -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Stored tensors of the text encoder; its vision half as one stand-in, since it is used for expansion only."""
    width, inner = QWEN_CONFIG["hidden_size"], QWEN_CONFIG["intermediate_size"]
    keys = width // QWEN_CONFIG["num_attention_heads"] * QWEN_CONFIG["num_key_value_heads"]
    yield "visual.all", ("BF16", (QWEN_VISION_WEIGHTS,))
    yield "model.embed_tokens.weight", ("BF16", (QWEN_CONFIG["vocab_size"], width))
    for layer in range(QWEN_CONFIG["num_hidden_layers"]):
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (width, width), "self_attn.q_proj.bias": (width,),
            "self_attn.k_proj.weight": (keys, width), "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.weight": (keys, width), "self_attn.v_proj.bias": (keys,),
            "self_attn.o_proj.weight": (width, width), "mlp.gate_proj.weight": (inner, width),
            "mlp.up_proj.weight": (inner, width), "mlp.down_proj.weight": (width, inner),
        }  # fmt: skip
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}", ("BF16", shape)
    yield "model.norm.weight", ("BF16", (width,))
    yield "lm_head.weight", ("BF16", (QWEN_CONFIG["vocab_size"], width))
