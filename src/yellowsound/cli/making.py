"""Making clips from the command line: where they go, what is told about them, and Ctrl-C."""

from __future__ import annotations

import json as json_module
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yellowsound.cli import EXIT_INTERRUPTED
from yellowsound.cli.display import Display
from yellowsound.events import Cancelled, CancelToken
from yellowsound.request import ClipRequest

if TYPE_CHECKING:
    from yellowsound.engine import Engine


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
