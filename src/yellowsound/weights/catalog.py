"""The eight published checkpoints, as facts, and the way from a name to a folder. No torch, no network.

Bytes are sums of safetensors as published (2026-10); ``None`` where nobody could establish a value. Steps and guidance
are those the checkpoint was trained or published for. Wrong audio latent scales change loudness without an error, so
they are written down here and compared with the folder's own config by ``yellowsound weights check``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yellowsound.checkpoint import Checkpoint, CheckpointError
from yellowsound.request import Variant

Task = Literal["generate", "upscale"]
DEMO: dict[str, Variant] = {"demo": "piflow", "demo-flow": "flow"}
LICENCES = (
    "transformer: MIT; text_encoder (Qwen2.5-VL): Apache-2.0; text_encoder_2 (CLIP), vae (HunyuanVideo), "
    "vocoder (BigVGAN): their own terms; audio_vae (MMAudio): CC BY-NC 4.0 as third parties report, "
    "which forbids commercial use: settle this before you sell what it makes"
)
UPSCALER_LICENCES = "code: MIT; terms of the weights: see the repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published checkpoint: where it is, how large, and how it wants to be run."""

    name: str
    repository: str
    task: Task
    size_bytes: int | None
    steps: int
    guidance: float
    audio_latent_scale: float | None
    gating: str
    transformer_file_bytes: int | None = None
    licences: str = LICENCES

    @property
    def folder_name(self) -> str:
        """Name of the repository's folder in a hub cache."""
        return f"models--{self.repository.replace('/', '--')}"


_OPEN = "open as far as known; a token may be asked for"
_GATED = "gated: automatic approval after a form on the hub"
_UNKNOWN = "not established whether a form is asked for"
CATALOG: tuple[Published, ...] = (
    Published(
        name="pro", repository="kandinskylab/Kandinsky-6.0-Pro-5s-Diffusers", task="generate",
        size_bytes=89_997_268_172, steps=50, guidance=5.0, audio_latent_scale=0.5302, gating=_GATED,
    ),
    Published(
        name="pro-distill", repository="kandinskylab/Kandinsky-6.0-Pro-distill-5s-Diffusers", task="generate",
        size_bytes=80_607_441_652, steps=10, guidance=1.0, audio_latent_scale=0.417, gating=_OPEN,
        transformer_file_bytes=60_344_993_576,
    ),
    Published(
        name="pro-pretrain", repository="kandinskylab/Kandinsky-6.0-Pro-pretrain-5s-Diffusers", task="generate",
        size_bytes=89_997_268_172, steps=50, guidance=5.0, audio_latent_scale=0.417, gating=_UNKNOWN,
    ),
    Published(
        name="lite", repository="kandinskylab/Kandinsky-6.0-Lite-5s-Diffusers", task="generate",
        size_bytes=27_738_988_100, steps=50, guidance=5.0, audio_latent_scale=0.5302, gating=_OPEN,
        transformer_file_bytes=7_476_528_464,
    ),
    Published(
        name="lite-distill", repository="kandinskylab/Kandinsky-6.0-Lite-distill-5s-Diffusers", task="generate",
        size_bytes=26_644_058_740, steps=10, guidance=1.0, audio_latent_scale=0.417, gating=_OPEN,
        transformer_file_bytes=6_381_599_096,
    ),
    Published(
        name="lite-pretrain", repository="kandinskylab/Kandinsky-6.0-Lite-pretrain-5s-Diffusers", task="generate",
        size_bytes=27_738_988_108, steps=50, guidance=5.0, audio_latent_scale=0.417, gating=_UNKNOWN,
    ),
    Published(
        name="vsr-distill", repository="kandinskylab/Kandinsky-6.0-VSR-distilled2steps-5s-Diffusers", task="upscale",
        size_bytes=None, steps=2, guidance=1.0, audio_latent_scale=None, gating=_OPEN, licences=UPSCALER_LICENCES,
    ),
    Published(
        name="vsr", repository="kandinskylab/Kandinsky-6.0-VSR-5s-Diffusers", task="upscale",
        size_bytes=None, steps=4, guidance=1.0, audio_latent_scale=None, gating=_OPEN, licences=UPSCALER_LICENCES,
    ),
)  # fmt: skip


def find(name: str) -> Published | None:
    """The catalog entry called ``name``: its short name, its repository or the repository's last part."""
    for entry in CATALOG:
        if name in (entry.name, entry.repository, entry.repository.split("/")[1]):
            return entry
    return None


def resolve(name_or_folder: str | Path) -> Path:
    """The folder of ``demo``, ``demo-flow``, a published name or a path. Raises CheckpointError.

    A published name gives its downloaded snapshot if that is complete; nothing is ever downloaded here.
    """
    text = str(name_or_folder)
    if text in DEMO:
        from yellowsound.demo import folder

        return Path(folder(DEMO[text]))
    entry = find(text)
    if entry is not None:
        return _downloaded(entry)
    path = Path(text).expanduser()
    if path.exists():
        return path
    raise CheckpointError(_unknown(text))


def caches() -> list[Path]:
    """Folders in hub layout where a download may lie, in the order they are searched and written to.

    ``KANDINSKY_HOME/weights`` comes first if the variable is set; then the hub's own cache (HF_HUB_CACHE, HF_HOME,
    XDG_CACHE_HOME); then the folder that Kandinsky's own tools use.
    """
    environment = os.environ
    found = []
    if environment.get("KANDINSKY_HOME"):
        found.append(Path(environment["KANDINSKY_HOME"]).expanduser() / "weights")
    found.append(_hub_cache())
    found.append(Path("~/.cache/kandinsky/weights").expanduser())
    return list(dict.fromkeys(found))


def snapshot(entry: Published) -> Path | None:
    """The newest downloaded snapshot of ``entry``, complete or not; None if there is none."""
    for cache in caches():
        repository = cache / entry.folder_name
        reference = repository / "refs" / "main"
        if reference.is_file() and (repository / "snapshots" / reference.read_text().strip()).is_dir():
            return repository / "snapshots" / reference.read_text().strip()
        others = sorted(_folders(repository / "snapshots"), key=lambda p: p.stat().st_mtime)
        if others:
            return others[-1]
    return None


def problem(entry: Published, folder: Path) -> str | None:
    """What keeps a downloaded ``folder`` from being used, in one line; None if it is complete."""
    try:
        if entry.task == "generate":
            Checkpoint.open(folder)
        elif not (folder / "model_index.json").is_file():
            return f"{folder / 'model_index.json'}: found nothing"
    except CheckpointError as error:
        return str(error)
    return None


def _downloaded(entry: Published) -> Path:
    folder = snapshot(entry)
    remedy = f"run `yellowsound weights download {entry.name}`"
    if folder is None:
        where = ", ".join(str(cache) for cache in caches())
        raise CheckpointError(f"{entry.name}: found no download in {where}; expected {entry.repository}; {remedy}")
    trouble = problem(entry, folder)
    if trouble is not None:
        raise CheckpointError(f"{entry.name}: the download is not usable: {trouble}; {remedy}")
    return folder


def _hub_cache() -> Path:
    environment = os.environ
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return Path(environment[variable]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _folders(parent: Path) -> Iterator[Path]:
    return (path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else iter(())


def _unknown(text: str) -> str:
    names = [*DEMO, *(entry.name for entry in CATALOG)]
    near = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "see `yellowsound weights list`"
    return f"{text}: found no such folder; expected a folder or one of {', '.join(names)}; {hint}"
