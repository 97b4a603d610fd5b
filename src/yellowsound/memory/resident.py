"""Loading whole parts with their libraries' own loaders: what runs resident, exactly as the pipeline would load it.

Every call names a dtype, since transformers would otherwise keep the file's and diffusers would take float32; nothing
here ever asks a hub.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from yellowsound.checkpoint import Checkpoint, CheckpointError


@dataclass(slots=True)
class Models:
    """The networks of one checkpoint on one device; parts are loaded when first asked for and kept."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    _loaded: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _LOADERS:
            raise AttributeError(name)
        if name not in self._loaded:
            self._loaded[name] = _LOADERS[name](self)
        return self._loaded[name]

    def is_loaded(self, name: str) -> bool:
        """Whether a part is in memory; asking for it as an attribute would load it."""
        return name in self._loaded

    def drop(self, *names: str) -> None:
        """Forget parts, so that their memory can be had by others; without names, all of them."""
        for name in names or tuple(self._loaded):
            self._loaded.pop(name, None)

    def folder(self, component: str) -> str:
        return str(self.checkpoint.folder / component)


def _diffusers_part(component: str, class_name: str) -> Any:
    def load(models: Models) -> Any:
        import diffusers

        cls = getattr(diffusers, class_name)
        part = cls.from_pretrained(models.folder(component), dtype=models.dtype, local_files_only=True)
        return part.to(models.device).eval()

    return load


def _transformers_part(component: str, class_name: str) -> Any:
    def load(models: Models) -> Any:
        import transformers

        transformers.utils.logging.disable_progress_bar()  # progress leaves the engine as events only
        cls = getattr(transformers, class_name)
        part = cls.from_pretrained(models.folder(component), dtype=models.dtype, local_files_only=True)
        return part.to(models.device).eval()

    return load


def _scheduler(models: Models) -> Any:
    import diffusers

    cls = getattr(diffusers, models.checkpoint.components["scheduler"].class_name)
    return cls.from_pretrained(models.folder("scheduler"), local_files_only=True)


def _tokenizer(models: Models) -> Any:
    """The plain tokenizer inside the Qwen processor's folder: equal ids, and no torchvision."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models.folder("tokenizer"), local_files_only=True)
    if tokenizer.padding_side != "right":
        raise CheckpointError(
            f"{models.folder('tokenizer')}: padding_side is {tokenizer.padding_side!r}, expected 'right' "
            "(left padding would crop the prompt away); set it in tokenizer_config.json"
        )
    return tokenizer


def _clip_tokenizer(models: Models) -> Any:
    from transformers import CLIPTokenizer

    return CLIPTokenizer.from_pretrained(models.folder("tokenizer_2"), local_files_only=True)


_LOADERS: dict[str, Any] = {
    "transformer": _diffusers_part("transformer", "Kandinsky6Transformer3DModel"),
    "vae": _diffusers_part("vae", "AutoencoderKLHunyuanVideo"),
    "audio_vae": _diffusers_part("audio_vae", "MMAudioVAE"),
    "vocoder": _diffusers_part("vocoder", "MMAudioVocoder"),
    "qwen": _transformers_part("text_encoder", "Qwen2_5_VLForConditionalGeneration"),
    "clip": _transformers_part("text_encoder_2", "CLIPTextModel"),
    "scheduler": _scheduler,
    "tokenizer": _tokenizer,
    "clip_tokenizer": _clip_tokenizer,
}
