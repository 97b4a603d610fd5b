"""The blocks that cancelling looks between are classes that exist: a wrong name would make a stage deaf."""

from __future__ import annotations

from diffusers.models.autoencoders import autoencoder_kl_hunyuan_video, autoencoder_mmaudio, mmaudio_vocoder
from diffusers.models.transformers import transformer_kandinsky6
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from yellowsound.memory import stack, text_loader
from yellowsound.stages.cancel import BLOCK_CLASSES

HOMES = (
    autoencoder_kl_hunyuan_video,
    autoencoder_mmaudio,
    mmaudio_vocoder,
    transformer_kandinsky6,
    modeling_qwen2_5_vl,
    stack,
    text_loader,
)


def test_every_block_class_exists() -> None:
    missing = {name for name in BLOCK_CLASSES if not any(hasattr(home, name) for home in HOMES)}
    assert not missing
