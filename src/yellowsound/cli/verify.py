"""yellowsound verify: is what this installation makes of a checkpoint what diffusers makes of it?"""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

from cyclopts import Parameter

from yellowsound.cli.options import Whole
from yellowsound.request import parse_size

EXIT_DIFFERS = 1


def verify(
    checkpoint: str,
    *,
    size: str = "256x192",
    frames: Whole = 9,
    steps: Whole = 4,
    seed: Whole = 0,
    device: str = "auto",
    dtype: str = "auto",
    checksums: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Make a short clip with yellowsound and with diffusers and compare latents, frames and sound, bit for bit.

    Exit code 0: equal; 1: something differs or could not be compared; 2: the checkpoint or the request is wrong.

    Parameters
    ----------
    checkpoint
        A folder, ``demo``, or a published name.
    size
        WIDTHxHEIGHT of the clip.
    frames
        Its number of frames, 4k+1.
    steps
        Denoising steps.
    seed
        0 to 2^63-1.
    device
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    dtype
        ``auto``, ``bfloat16`` or ``float32``.
    checksums
        --no-checksums leaves out reading every byte of a hub download to compare its SHA-256.
    json
        One JSON document on stdout, nothing else.
    """
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    from yellowsound.measure.verify import verify as compare

    width, height = parse_size(size)
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    verdict = compare(
        checkpoint, width=width, height=height, num_frames=frames, steps=steps, seed=seed, device=device, dtype=dtype,
        checksums=checksums,
    )  # fmt: skip
    if json:
        print(json_module.dumps(verdict.to_json(), indent=2))
    else:
        print(f"{verdict.checkpoint} on {verdict.device} in {verdict.dtype}, {size}, {frames} frames, {steps} steps")
        for finding in verdict.findings:
            print(f"{finding.what:18}{finding.state:14}{finding.detail}")
        print("equal" if verdict.passed else "NOT shown to be equal")
    if not verdict.passed:
        sys.exit(EXIT_DIFFERS)
