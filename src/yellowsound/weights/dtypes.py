"""Which tensors stay float32 when a checkpoint is loaded in a shorter type: one table for every loading path. No torch.

The rule is stock diffusers' (``from_pretrained(torch_dtype=...)``): a tensor stays float32 if one whole dotted part of
its name is on the class's list. In Kandinsky 6 that keeps the two heads' modulations only: ``visual_modulation``,
``text_modulation``, ``va_modulation``, ``av_modulation`` and ``video_time_embeddings`` are other words and are rounded.
transformers' parts keep nothing; non-persistent buffers (RoPE tables, inverse frequencies) are computed in float32 and
never cast. Integer buffers keep their type. Both facts are held by tests against ``from_pretrained``.
"""

from __future__ import annotations

FLOAT32_PARTS: dict[str, frozenset[str]] = {
    "Kandinsky6Transformer3DModel": frozenset({"time_embeddings", "modulation"}),
    "Kandinsky6SRTransformer3DModel": frozenset({"time_embeddings", "pooled_bias", "modulation"}),
}
_CLASS_OF = {"transformer": "Kandinsky6Transformer3DModel"}
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")


def stays_float32(component: str, name: str) -> bool:
    """Whether tensor ``name`` of ``component`` (a part's name or its class) stays float32 beside bf16 weights."""
    kept = FLOAT32_PARTS.get(_CLASS_OF.get(component, component), frozenset())
    return not kept.isdisjoint(name.split("."))


def loaded_dtype(component: str, name: str, stored: str, wanted: str) -> str:
    """safetensors' name of the type that ``name`` has once loaded in ``wanted`` (F32, BF16 or F16)."""
    if stored not in FLOAT_DTYPES:
        return stored
    return "F32" if stays_float32(component, name) else wanted
