"""yellowsound generate: one clip from a prompt, or many from a file of prompts with one load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from yellowsound.cli.display import choose
from yellowsound.cli.making import Output, cancel_on_interrupt, closing_display, load_engine, make_clip, print_result
from yellowsound.cli.options import Whole, frame_count, sides
from yellowsound.recipe import find_recipe
from yellowsound.request import ClipRequest, RequestError


def generate(
    prompt: str | None = None,
    *,
    checkpoint: str = "demo",
    image: Path | None = None,
    size: str | None = None,
    frames: Whole | None = None,
    seconds: float | None = None,
    steps: Whole | None = None,
    guidance: float | None = None,
    seed: Whole | None = None,
    negative: str | None = None,
    audio: bool = True,
    audio_level: float | None = None,
    expand_prompt: Annotated[bool, Parameter(negative="")] = False,
    out: Path | None = None,
    overwrite: Annotated[bool, Parameter(negative="")] = False,
    prompts: Path | None = None,
    seeds: Whole = 1,
    device: str = "auto",
    dtype: str = "auto",
    vram: str | None = None,
    ram: str | None = None,
    offload: Literal["auto", "none", "module", "block"] = "auto",
    recipe: str = "exact",
    lora: Annotated[list[str] | None, Parameter(negative="")] = None,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Make a clip with sound from PROMPT, or many clips from --prompts FILE.

    Parameters
    ----------
    prompt
        What to show and to be heard, 1 to 32,000 characters.
    checkpoint
        ``demo``, a folder in the Diffusers layout, or a published name (see ``yellowsound weights list``).
    image
        Picture the clip starts from; it is covered and centre-cropped to the size.
    size
        WIDTHxHEIGHT in pixels, multiples of 16. Default: the checkpoint's, 864x480.
    frames
        Number of frames, 4k+1 (others are rounded). Default: the checkpoint's, 121.
    seconds
        Length instead of --frames; 5 gives 121 frames.
    steps
        Denoising steps. Default: 10 for distilled checkpoints, 50 for base ones.
    guidance
        Guidance scale. Default: 1.0 for distilled checkpoints (no other is taken), 5.0 for base ones.
    seed
        0 to 2^63-1; without one, or with -1, it is drawn and shown. torch's generator takes the low 32 bits, as it
        does under diffusers: seeds that differ by a multiple of 2^32 make the same clip.
    negative
        What to steer away from; "" means nothing. Default: the model's own text.
    audio
        --no-audio writes no sound.
    audio_level
        RMS of the sound in dBFS, -70 to 0. Default: as decoded.
    expand_prompt
        Let the checkpoint's own Qwen2.5-VL write the prompt out first.
    out
        The MP4, or the folder with --prompts. Default: a new name in this folder.
    overwrite
        Replace a file that is there.
    prompts
        File with one prompt a line, or JSON lines with "prompt" and any of the request's fields.
    seeds
        With --prompts: so many clips a prompt, from --seed (default 0) upwards. Files that exist are kept.
    device
        auto, cpu, cuda or cuda:N.
    dtype
        auto, bfloat16 or float32.
    vram
        Most of the card that may be taken, such as 16GiB.
    ram
        Most of the host's memory that may be taken, such as 32GiB.
    offload
        auto chooses by plan; none keeps every part on the card, module the transformer, block streams every block.
    recipe
        exact (the default: bit-identical to diffusers) or trimmed (padding of the prompt cut off instead of masked:
        the same arithmetic in another order).
    lora
        FILE or FILE:0.8, merged into the transformer; may be given more than once.
    quiet
        Show nothing but errors.
    json
        One JSON document on stdout and nothing else there.
    """
    fields: dict[str, Any] = {
        "image": image,
        "negative_prompt": negative,
        "num_frames": frame_count(frames, seconds),
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "seed": seed,
        "sample_audio": audio,
        "expand_prompt": expand_prompt,
        **sides(size),
    }
    engine_options: dict[str, Any] = {
        "checkpoint": checkpoint,
        "device": device,
        "dtype": dtype,
        "vram": vram,
        "ram": ram,
        "offload": offload,
        "recipe": find_recipe(recipe),
        "loras": lora or (),
    }
    output = Output(out, overwrite, audio_level, choose(quiet=quiet, json=json), quiet, json)
    if prompts is not None:
        from yellowsound.cli.batch import generate_many

        if prompt is not None:
            raise RequestError("prompt", prompt, "cannot be given together with --prompts")
        generate_many(prompts, fields, seeds, output, engine_options)
        return
    if seeds != 1:
        raise RequestError("seeds", seeds, "goes with --prompts; one prompt takes --seed", 1)
    if prompt is None:
        raise RequestError("prompt", prompt, 'must be given, as in: yellowsound generate "a red ball bounces"')
    request = ClipRequest(prompt=prompt, **fields)
    with cancel_on_interrupt() as cancel, closing_display(output.display):
        engine = load_engine(engine_options)
        print_result(make_clip(engine, request, output.path_for(request), output, cancel), output)
