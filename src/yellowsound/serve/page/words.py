"""Numbers as people say them: durations, sizes, moments, shortened prompts."""

from __future__ import annotations

import time

STAGES = {
    "load": "loading the model",
    "expand": "writing the prompt out",
    "text": "reading the prompt",
    "image": "reading the picture",
    "denoise": "denoising",
    "decode": "decoding picture and sound",
    "upscale": "making it larger",
    "mux": "writing the file",
}
PREFIXES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def seconds(value: float | None) -> str:
    """A duration: ``0.8 s``, ``42 s``, ``12 min``, ``1 h 5 min``; empty when there is none."""
    if value is None:
        return ""
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float | None) -> str:
    """Bytes in binary units: ``3.4 MiB``."""
    if count is None:
        return ""
    power = 0
    while count >= 1000 and power < len(PREFIXES) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} {PREFIXES[power]}" if count >= 10 or power == 0 else f"{count:.1f} {PREFIXES[power]}"


def moment(epoch_seconds: float | None) -> str:
    """How long ago: ``just now``, ``5 min ago``, ``3 h ago``, else the day and time of the server."""
    if epoch_seconds is None:
        return ""
    ago = time.time() - epoch_seconds
    if ago < 60:
        return "just now"
    if ago < 3600:
        return f"{ago / 60:.0f} min ago"
    if ago < 86_400:
        return f"{ago / 3600:.0f} h ago"
    return clock(epoch_seconds)


def clock(epoch_seconds: float) -> str:
    """Day and time of the server."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch_seconds))


def short(text: str, characters: int = 90) -> str:
    """One line of at most ``characters``."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1].rstrip() + "…"


def number(value: float) -> str:
    """A number without needless zeros: ``5``, ``1.25``."""
    return f"{value:.6g}"
