"""From a stored tensor's name to its name in the loaded module. No torch.

diffusers' parts use the same name in both places; transformers 5 stores Qwen2.5-VL and CLIP under older names.
"""

from __future__ import annotations

import re

_QWEN_INNER = re.compile(r"^model\.(?!language_model\.|visual\.)")
# a buffer that CLIP files of old carried, and what a whole CLIP has beside its text half; transformers leaves them out
_IGNORED = {
    "text_encoder_2": re.compile(r"position_ids$|^text_projection\.|^visual_projection\.|^vision_model\.|^logit_")
}


def name_in_module(component: str, stored: str) -> str | None:
    """The state-dict name of the stored tensor ``stored``; None if it is one that loading leaves out."""
    if component in _IGNORED and _IGNORED[component].search(stored):
        return None
    if component == "text_encoder":
        if stored.startswith("visual."):
            return f"model.{stored}"
        return _QWEN_INNER.sub("model.language_model.", stored)
    if component == "text_encoder_2":
        return stored.removeprefix("text_model.")
    return stored
