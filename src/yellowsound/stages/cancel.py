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
        "MMAudioDecoder1D",
        "MMAudioAMPBlock",
    }
)

STACK_CLASS = "LayerStack"  # streams the layers of the text encoder and looks at a token of its own before each


@contextmanager
def cancellable(cancel: CancelToken, *models: Any) -> Iterator[None]:
    """While it is open, each block of ``models`` first raises Cancelled if the token was thrown."""
    modules = [m for model in models for m in model.modules()]
    blocks = [m for m in modules if type(m).__name__ in BLOCK_CLASSES]
    stacks: list[Any] = [m for m in modules if type(m).__name__ == STACK_CLASS]
    handles = [block.register_forward_pre_hook(lambda *_: cancel.check()) for block in blocks]
    try:
        for stack in stacks:
            stack.cancel = cancel
        yield
    finally:
        for stack in stacks:
            stack.cancel = CancelToken()
        for handle in handles:
            handle.remove()
