"""yellowsound generate: one clip from a prompt, or many from a file of prompts with one load."""

from __future__ import annotations

import json as json_module
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from yellowsound.cli import EXIT_INTERRUPTED
from yellowsound.cli.display import Display, choose
from yellowsound.events import Cancelled, CancelToken
from yellowsound.recipe import find_recipe
from yellowsound.request import ClipRequest, RequestError, frames_for_seconds, parse_size

if TYPE_CHECKING:
    from cyclopts import Token

    from yellowsound.engine import Engine


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """Digits as a whole number; cyclopts itself would cut 1.5 down to 1 without a word."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]


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
        "num_frames": _frame_count(frames, seconds),
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "seed": seed,
        "sample_audio": audio,
        "expand_prompt": expand_prompt,
        **_sides(size),
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


@dataclass(frozen=True, slots=True)
class Output:
    """Where clips go and how they are reported."""

    out: Path | None
    overwrite: bool
    audio_level: float | None
    display: Display
    quiet: bool
    json: bool

    def path_for(self, request: ClipRequest) -> Path:
        """--out, or a new name in the current folder (or in --out, if that is a folder)."""
        from yellowsound.clip import output_path

        if self.out is not None and not self.out.is_dir():
            return self.out
        return output_path(self.out or Path.cwd(), request.prompt, request.seed or 0)


def load_engine(options: dict[str, Any]) -> Engine:
    """The engine for a command's options; importing it is what takes the time."""
    from yellowsound.engine import Engine
    from yellowsound.memory.budget import parse_bytes

    sizes: dict[str, Any] = {
        f"{name}_bytes": parse_bytes(options[name], name) for name in ("vram", "ram") if options[name]
    }
    rest = {key: value for key, value in options.items() if key not in ("vram", "ram")}
    return Engine.load(**rest, **sizes)


def make_clip(engine: Engine, request: ClipRequest, path: Path, output: Output, cancel: CancelToken) -> dict[str, Any]:
    """Make and write one clip; returns its report: file, seconds of video, wall seconds and the clip's metadata."""
    began = time.perf_counter()
    clip = engine.generate(
        request,
        on_event=output.display,
        cancel=cancel,
        out=path,
        overwrite=output.overwrite,
        audio_level=output.audio_level,
    )
    return {
        "file": str(path),
        "frames": len(clip.frames),
        "duration_seconds": round(clip.duration_seconds, 6),
        "wall_seconds": round(time.perf_counter() - began, 3),
        **clip.metadata,
    }


def print_result(report: dict[str, Any], output: Output) -> None:
    """The report as JSON on stdout, or as a short summary for people."""
    output.display.close()
    if output.json:
        print(json_module.dumps(report, ensure_ascii=False))
    elif not output.quiet:
        print(summary(report))


def summary(report: dict[str, Any]) -> str:
    """A few lines: file, length, seed, steps, seconds by stage, peaks, what is to be known."""
    sound = "with sound" if report["sample_audio"] else "without sound"
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report["seconds"].items())
    vram = f"{report['peak_vram_bytes'] / 2**30:.1f} GiB VRAM, " if report["peak_vram_bytes"] else ""
    lines = [
        f"{report['file']}: {report['width']}x{report['height']}, {report['frames']} frames, "
        f"{report['duration_seconds']:.2f} s {sound}",
        f"seed {report['seed']}, {report['num_inference_steps']} steps, guidance {report['guidance_scale']:g}, "
        f"{report['checkpoint']} ({report['level']}, {report['dtype']} on {report['device']})",
        f"{report['wall_seconds']:.1f} s: {stages}; peak {vram}{report['peak_ram_bytes'] / 2**30:.1f} GiB RAM",
        *(f"note: {message}" for message in report["warnings"]),
    ]
    return "\n".join(lines)


@contextmanager
def cancel_on_interrupt() -> Iterator[CancelToken]:
    """Ctrl-C throws the token, so that the engine stops within a block and leaves no file; a second one is blunt."""
    cancel = CancelToken()

    def interrupt(*_: object) -> None:
        if cancel.is_cancelled:
            raise KeyboardInterrupt
        cancel.cancel()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield cancel
    except Cancelled:
        print("yellowsound: stopped; no file was left", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def closing_display(display: Display) -> Iterator[None]:
    """Whatever happens, the terminal is left as it was."""
    try:
        yield
    finally:
        display.close()


def _frame_count(frames: int | None, seconds: float | None) -> int | None:
    if frames is not None and seconds is not None:
        raise RequestError("seconds", seconds, f"cannot be given together with --frames {frames}")
    return frames if seconds is None else frames_for_seconds(seconds)


def _sides(size: str | None) -> dict[str, int]:
    if size is None:
        return {}
    width, height = parse_size(size)
    return {"width": width, "height": height}
