"""Stored names and shapes against the models' own, built on the meta device: no memory, no weight read."""

from __future__ import annotations

from typing import Any

import torch

from yellowsound.checkpoint import Checkpoint, Component
from yellowsound.safetensors_header import refuse
from yellowsound.weights.names import name_in_module

_DOWNLOAD = "download this part of the checkpoint again"


def check_against_models(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose stored tensors are not exactly those of the classes it names.

    Raises CheckpointError naming the first tensor that is missing, unknown or of another shape.
    """
    for component in checkpoint.components.values():
        if component.tensors:
            check_component(component)


def check_component(component: Component) -> None:
    """The same for one part. Raises CheckpointError."""
    expected = expected_shapes(component)
    config = component.folder / "config.json"
    stored: dict[str, tuple[int, ...]] = {}
    for entry in component.tensors.values():
        name = name_in_module(component.name, entry.name)
        if name is None:
            continue
        if name not in expected:
            found = f"tensor {entry.name}"
            refuse(entry.file, found, f"only those of {component.class_name} as {config} describes it", _DOWNLOAD)
        if entry.shape != expected[name]:
            found = f"{entry.name} of shape {list(entry.shape)}"
            refuse(entry.file, found, f"{list(expected[name])} as {config} says", _DOWNLOAD)
        stored[name] = entry.shape
    missing = sorted(expected.keys() - stored.keys() - _tied(component))
    if missing:
        where = next(iter(component.tensors.values())).file
        found = f"no tensor {missing[0]}" + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
        refuse(where, found, f"all {len(expected)} of {component.class_name}", _DOWNLOAD)


def expected_shapes(component: Component) -> dict[str, tuple[int, ...]]:
    """Every state-dict name of the part's class, built from its config, with its shape."""
    from accelerate import init_empty_weights

    try:
        with init_empty_weights():  # buffers stay real: a class may compute one from another it keeps between instances
            model = build(component)
    except Exception as error:  # whatever a wrong config makes a constructor raise
        reason = str(error).strip().split("\n")[0]
        refuse(
            component.folder / "config.json", f"values {component.class_name} rejects ({reason})", "its own", _DOWNLOAD
        )
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def build(component: Component) -> torch.nn.Module:
    """The part's module from its config, without weights, on the current default device."""
    if component.name.startswith("text_encoder"):
        return _build_text(component)
    import diffusers

    model: torch.nn.Module = getattr(diffusers, component.class_name).from_config(dict(component.config))
    return model


def _build_text(component: Component) -> torch.nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    classes: dict[str, tuple[Any, Any]] = {
        "Qwen2_5_VLForConditionalGeneration": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig),
        "CLIPTextModel": (CLIPTextModel, CLIPTextConfig),
    }
    model_class, config_class = classes[component.class_name]
    model: torch.nn.Module = model_class._from_config(config_class.from_dict(dict(component.config)))
    return model


def _tied(component: Component) -> set[str]:
    """Names that need no stored tensor because another one is used for them."""
    inner = component.config.get("text_config")
    tied = component.config.get("tie_word_embeddings") or (isinstance(inner, dict) and inner.get("tie_word_embeddings"))
    return {"lm_head.weight"} if tied else set()
