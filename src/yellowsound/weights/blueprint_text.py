"""The text parts of a synthetic checkpoint: Qwen2.5-VL-7B and CLIP-L by shape, with the demo's own tokenizers.

Qwen's and CLIP's vocabularies are other people's: the demo's toy ones are copied instead, and the configs name their
special tokens, so that such a folder makes clips (of noise) end to end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yellowsound.safetensors_header import read_json
from yellowsound.weights.shapes import PartPlan, Stored

_QWEN_TEXT: dict[str, Any] = {
    "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 128_000, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}  # fmt: skip
_QWEN_VISION: dict[str, Any] = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
_CLIP: dict[str, Any] = {
    "vocab_size": 49_408, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "projection_dim": 768, "max_position_embeddings": 77,
}  # fmt: skip
_QWEN_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def toy_tokenizers() -> dict[str, Path]:
    """The demo checkpoint's tokenizer folders, by part name."""
    from yellowsound.weights.catalog import resolve

    demo = resolve("demo")
    return {name: demo / name for name in ("tokenizer", "tokenizer_2")}


def text_parts(tokenizers: dict[str, Path]) -> list[PartPlan]:
    """Both encoders, stored in bfloat16 under the names that their published files use."""
    from accelerate import init_empty_weights
    from transformers import CLIPTextConfig, CLIPTextModel, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    toy_qwen = read_json(tokenizers["tokenizer"].parent / "text_encoder" / "config.json")
    toy_clip = read_json(tokenizers["tokenizer_2"].parent / "text_encoder_2" / "config.json")
    inner = {**_QWEN_TEXT, **_picked(toy_qwen.get("text_config", toy_qwen), _TOKEN_IDS)}
    qwen_config = Qwen2_5_VLConfig(text_config=inner, vision_config=_QWEN_VISION, **_picked(toy_qwen, _QWEN_IDS))
    clip_config = CLIPTextConfig(**_CLIP, **_picked(toy_clip, _TOKEN_IDS))
    with init_empty_weights():
        qwen = Qwen2_5_VLForConditionalGeneration._from_config(qwen_config)
        clip = CLIPTextModel._from_config(clip_config)
    return [_part("text_encoder", qwen), _part("text_encoder_2", clip)]


def _part(name: str, model: Any) -> PartPlan:
    tensors: Stored = {_stored_name(key): ("BF16", tuple(t.shape)) for key, t in model.state_dict().items()}
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16"}
    return PartPlan(name, config, tensors)


def _stored_name(name: str) -> str:
    return name.replace("model.language_model.", "model.", 1).replace("model.visual.", "visual.", 1)


def _picked(config: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: config[key] for key in keys if config.get(key) is not None}
