"""Cancelling between blocks and tiles: a check before each block's forward, without touching the networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yellowsound.events import CancelToken

# The grain of cancelling: one fused block, one encoder layer, one stage of a decoder tile or of the vocoder.
BLOCK_CLASSES = frozenset(
    {
        "Kandinsky6FusedTransformerDecoderBlock",
        "Kandinsky6TransformerEncoderBlock",
        "BlockStack",
        "Qwen2_5_VLDecoderLayer",
        "HunyuanVideoDownBlock3D",
        "HunyuanVideoMidBlock3D",
        "HunyuanVideoUpBlock3D",
        "MMAudioVAEDecoder",
        "MMAudioVocoderAMPBlock",
    }
)


@contextmanager
def cancellable(cancel: CancelToken, *models: Any) -> Iterator[None]:
    """While it is open, each block of ``models`` first raises Cancelled if the token was thrown."""
    blocks = [m for model in models for m in model.modules() if type(m).__name__ in BLOCK_CLASSES]
    handles = [block.register_forward_pre_hook(lambda *_: cancel.check()) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
