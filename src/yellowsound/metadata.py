"""What a clip says of itself: enough to make it again, and to know what was allowed to change it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from yellowsound import __version__
from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.lora import Lora
from yellowsound.memory.plan import Plan
from yellowsound.recipe import Recipe
from yellowsound.request import ClipRequest
from yellowsound.run import Run


def clip_metadata(
    request: ClipRequest,
    run: Run,
    *,
    checkpoint: Checkpoint,
    recipe: Recipe,
    device: str,
    dtype: str,
    plan: Plan,
    loras: Sequence[Lora],
) -> dict[str, Any]:
    """Request, checkpoint, recipe with its level, machine facts, seconds by stage and warnings, as plain values.

    Seconds and peaks are those so far; a file that is written while its clip is made leaves them out.
    """
    return {
        **request.to_json(),
        "checkpoint": checkpoint.name,
        "revision": checkpoint.revision,
        "variant": checkpoint.variant,
        "recipe": recipe.name,
        "level": recipe.level,
        "device": device,
        "dtype": dtype,
        "decode_plan": plan.vae_decode,
        "residency": "resident" if plan.is_resident else "streamed",
        "loras": [{"file": lora.file.name, "scale": lora.scale} for lora in loras],
        "seconds": {stage: round(seconds, 4) for stage, seconds in run.seconds.items()},
        **run.peaks(),
        "warnings": list(run.warnings),
        "versions": {
            "yellowsound": __version__,
            **{name: version(name) for name in ("torch", "diffusers", "transformers")},
        },
    }
