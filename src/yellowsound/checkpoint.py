"""Checkpoint: a folder in the Diffusers layout, opened, verified and described from its headers.

Reads configs and safetensors headers only: no weight is read and torch is not imported here. Names and shapes against
the models' own are checked by ``weights.verify_shapes`` where torch is at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yellowsound import checkpoint_files as files
from yellowsound import checkpoint_fit as fit
from yellowsound.checkpoint_identity import FileIdentity
from yellowsound.request import Defaults, Variant
from yellowsound.safetensors_header import CheckpointError, TensorEntry, read_json, refuse

__all__ = ["Checkpoint", "CheckpointError", "Component", "TensorEntry"]

PIPELINE = "Kandinsky6TI2VAPipeline"
EXPECTED_CLASSES = {
    "transformer": ("Kandinsky6Transformer3DModel",),
    "vae": ("AutoencoderKLHunyuanVideo",),
    "text_encoder": ("Qwen2_5_VLForConditionalGeneration",),
    "tokenizer": ("Qwen2_5_VLProcessor", "Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast"),
    "text_encoder_2": ("CLIPTextModel",),
    "tokenizer_2": ("CLIPTokenizer", "CLIPTokenizerFast", "PreTrainedTokenizerFast"),
    "scheduler": ("FlowMatchEulerDiscreteScheduler", "PiflowScheduler"),
    "audio_vae": ("MMAudioVAE",),
    "vocoder": ("MMAudioVocoder",),
}
AUDIO_PARTS = ("audio_vae", "vocoder")
_OWN_FILE = "yellowsound.json"


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the pipeline (``transformer``, ``vae``, ...): its folder, config and stored tensors.

    Schedulers and tokenizers are components without tensors. ``files`` are the weight files as they were when their
    headers were read: every loading is held to them. They are empty for a part that only a manifest describes.
    """

    name: str
    folder: Path
    class_name: str
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]
    files: tuple[FileIdentity, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(t.size_bytes for t in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Stored numbers, buffers included."""
        return sum(_count(t) for t in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified folder: variant, components and the defaults that a request takes from it.

    ``absent`` names parts that the folder itself declares missing (audio parts, or those of a synthetic checkpoint).
    ``revision`` is the commit of the hub repository that the folder was downloaded from, if known.
    """

    folder: Path
    name: str
    variant: Variant
    components: dict[str, Component]
    defaults: Defaults
    absent: tuple[str, ...] = ()
    revision: str | None = None

    @property
    def has_audio(self) -> bool:
        """Whether sound can be made: both audio parts are there."""
        return all(part in self.components for part in AUDIO_PARTS)

    @property
    def size_bytes(self) -> int:
        return sum(c.size_bytes for c in self.components.values())

    def require(self, *names: str) -> None:
        """Refuse a checkpoint that lacks one of the parts ``names``. Raises CheckpointError."""
        missing = [name for name in names if name not in self.components]
        if missing:
            found = f"no {', '.join(missing)}"
            refuse(self.folder, found, "these parts for what is asked", "use a complete checkpoint")

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Read and verify ``folder`` without reading a weight. Raises CheckpointError.

        Every file's size is proved from its header, every index against the headers, every part against the class,
        width and channels that the others expect.
        """
        root = Path(folder).expanduser()
        index = files.model_index(root, PIPELINE)
        own = read_json(root / _OWN_FILE) if (root / _OWN_FILE).exists() else {}
        absent = _absent(root, index, own)
        components = {name: _component(root, name, index[name][1]) for name in EXPECTED_CLASSES if name not in absent}
        variant = fit.variant(components["scheduler"])
        fit.check(components)
        defaults = fit.defaults(root / _OWN_FILE, own, variant)
        name = str(own.get("name") or files.folder_name(root))
        return cls(root, name, variant, components, defaults, absent, files.revision(root, own))


def _absent(root: Path, index: dict[str, Any], own: dict[str, Any]) -> tuple[str, ...]:
    """The parts that are missing and may be: both audio parts, and what yellowsound.json itself declares."""
    declared = own.get("absent", [])
    if not isinstance(declared, list) or not set(declared) <= set(EXPECTED_CLASSES) - {"transformer", "scheduler"}:
        refuse(root / _OWN_FILE, f"absent={declared!r}", "a list of part names", "correct it")
    missing = [name for name in EXPECTED_CLASSES if not files.is_named(index.get(name))]
    for name in missing:
        if name not in AUDIO_PARTS and name not in declared:
            refuse(root / "model_index.json", f"no {name}", "[library, class]", "download the whole repository")
    return tuple(missing)


def _component(root: Path, name: str, class_name: str) -> Component:
    expected = EXPECTED_CLASSES[name]
    if class_name not in expected:
        refuse(root / "model_index.json", f"{name} {class_name}", " or ".join(expected), "use a Kandinsky 6 checkpoint")
    folder = root / name
    if not folder.is_dir():
        refuse(folder, "no folder", f"one with {class_name}", "download the whole repository")
    if name.startswith("tokenizer"):
        files.check_tokenizer(folder)
        return Component(name, folder, class_name, {}, {})
    if name == "scheduler":
        return Component(name, folder, class_name, files.config(folder / "scheduler_config.json", class_name), {})
    config = files.config(folder / "config.json", class_name)
    weights = files.weights(folder, files.weight_stem(name))
    return Component(name, folder, class_name, config, weights.tensors, weights.files)


def _count(tensor: TensorEntry) -> int:
    total = 1
    for side in tensor.shape:
        total *= side
    return total
