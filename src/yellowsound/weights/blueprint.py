"""What a synthetic checkpoint consists of: configs and stored tensors of every part, before a byte is written.

The transformer follows the published headers exactly. The other parts are the classes at their default sizes (the
published configs were not readable), stored in float32, Qwen2.5-VL-7B and CLIP-L in bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yellowsound.request import RequestError, Variant
from yellowsound.weights.catalog import Published
from yellowsound.weights.shapes import PartPlan, Size, Stored, transformer_config, transformer_tensors

PARTS = {
    "transformer": ("transformer",),
    "vae": ("vae",),
    "audio": ("audio_vae", "vocoder"),
    "text": ("text_encoder", "text_encoder_2"),
}
_LIBRARIES = {
    "text_encoder": "transformers",
    "text_encoder_2": "transformers",
    "tokenizer": "transformers",
    "tokenizer_2": "transformers",
}
_CLASSES = {
    "transformer": "Kandinsky6Transformer3DModel", "vae": "AutoencoderKLHunyuanVideo", "audio_vae": "MMAudioVAE",
    "vocoder": "MMAudioVocoder", "text_encoder": "Qwen2_5_VLForConditionalGeneration",
    "text_encoder_2": "CLIPTextModel", "tokenizer": "Qwen2_5_VLProcessor", "tokenizer_2": "CLIPTokenizer",
}  # fmt: skip
_SCHEDULERS: dict[Variant, dict[str, Any]] = {
    "flow": {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 5.0},
    "piflow": {
        "_class_name": "PiflowScheduler", "num_train_timesteps": 1000, "shift": 5.0, "n_grid": 10, "eps": 1e-6,
        "final_step_size_scale": 0.5, "num_policy_substeps": 128,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A whole folder to write. ``tokenizers``: folders to copy, by part name."""

    name: str
    variant: Variant
    parts: tuple[PartPlan, ...]
    tokenizers: dict[str, Path] = field(default_factory=dict)

    @property
    def absent(self) -> tuple[str, ...]:
        """Parts that the folder declares missing."""
        there = {part.name for part in self.parts} | set(self.tokenizers)
        return tuple(name for name in _CLASSES if name not in there)

    @property
    def scheduler(self) -> dict[str, Any]:
        return _SCHEDULERS[self.variant]

    def model_index(self) -> dict[str, Any]:
        """The folder's model_index.json; absent parts are ``[null, null]``."""
        entries: dict[str, list[str | None]] = {"scheduler": ["diffusers", self.scheduler["_class_name"]]}
        for name, class_name in _CLASSES.items():
            entries[name] = [None, None] if name in self.absent else [_LIBRARIES.get(name, "diffusers"), class_name]
        return {"_class_name": "Kandinsky6TI2VAPipeline", "_diffusers_version": "0.42.1", **entries}


def blueprint(like: Published, parts: Iterable[str], blocks: int | None = None) -> Blueprint:
    """The plan of a checkpoint like ``like`` with ``parts`` (of PARTS), cut to ``blocks`` fused blocks.

    Raises RequestError for an unknown part, a missing transformer, an upscaler, or blocks out of range.
    """
    wanted = list(dict.fromkeys(parts))
    _check(like, wanted)
    variant: Variant = "piflow" if like.name.endswith("-distill") else "flow"
    size: Size = "pro" if like.name.startswith("pro") else "lite"
    config = transformer_config(size, variant)
    if blocks is not None:
        if not 1 <= blocks <= config["num_visual_blocks"]:
            most = config["num_visual_blocks"]
            raise RequestError("blocks", blocks, f"must be from 1 to {most} for {like.name}", min(max(blocks, 1), most))
        config["num_visual_blocks"] = blocks
    plans = [transformer_part(config, variant)]
    if "vae" in wanted:
        plans.append(_diffusers_part("vae"))
    if "audio" in wanted:
        plans += [_diffusers_part("audio_vae", scaling_factor=like.audio_latent_scale), _diffusers_part("vocoder")]
    tokenizers: dict[str, Path] = {}
    if "text" in wanted:
        from yellowsound.weights.blueprint_text import text_parts, toy_tokenizers

        tokenizers = toy_tokenizers()
        plans += text_parts(tokenizers)
    return Blueprint(f"synthetic-{like.name}", variant, tuple(plans), tokenizers)


def transformer_part(config: dict[str, Any], variant: Variant) -> PartPlan:
    """A transformer of any ``config``, stored as published files are."""
    named = {"_class_name": _CLASSES["transformer"], "_diffusers_version": "0.42.1", **config}
    return PartPlan("transformer", named, transformer_tensors(config, variant))


def _check(like: Published, wanted: list[str]) -> None:
    if like.task != "generate":
        raise RequestError("like", like.name, "only generation checkpoints can be made up")
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        problem = f"unknown {', '.join(unknown)}; known: {', '.join(PARTS)}"
        raise RequestError("components", ",".join(wanted), problem)
    if "transformer" not in wanted:
        raise RequestError("components", ",".join(wanted), "transformer must be among them")


def _diffusers_part(name: str, **changed: Any) -> PartPlan:
    """A part at its class's default size, float32, shapes from the class itself on the meta device."""
    import diffusers
    from accelerate import init_empty_weights

    with init_empty_weights():
        model = getattr(diffusers, _CLASSES[name])(**changed)
    tensors: Stored = {key: ("F32", tuple(value.shape)) for key, value in model.state_dict().items()}
    return PartPlan(name, json.loads(model.to_json_string()), tensors)
