"""Models: the networks of one checkpoint, each loaded when it is first asked for, by its library's own loader.

Every call names a dtype, since transformers would otherwise keep the file's and diffusers would take float32; nothing
here ever asks a hub. A weight file that was replaced since the checkpoint was opened is a ReadError.
``memory.streamed`` loads the same parts by plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from yellowsound.checkpoint import Checkpoint, CheckpointError
from yellowsound.memory.identity import unreplaced
from yellowsound.memory.plan import Plan

# part -> (library, folder in the checkpoint, class)
NETWORKS = {
    "transformer": ("diffusers", "transformer", "Kandinsky6Transformer3DModel"),
    "vae": ("diffusers", "vae", "AutoencoderKLHunyuanVideo"),
    "audio_vae": ("diffusers", "audio_vae", "MMAudioVAE"),
    "vocoder": ("diffusers", "vocoder", "MMAudioVocoder"),
    "qwen": ("transformers", "text_encoder", "Qwen2_5_VLForConditionalGeneration"),
    "clip": ("transformers", "text_encoder_2", "CLIPTextModel"),
}
TEXT_PARTS = ("tokenizer", "qwen", "clip_tokenizer", "clip")
# Networks that one stage needs and the others do not; those that every clip uses come first.
STAGE_PARTS = ("vae", "audio_vae", "vocoder", "clip", "qwen")


class Models:
    """Parts by name: the networks of ``NETWORKS``, ``scheduler``, ``tokenizer`` and ``clip_tokenizer``.

    wanted_early: parts to load before the prompt is encoded, because ``read_ahead`` can use the time.
    """

    wanted_early: tuple[str, ...] = ()

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self.checkpoint, self.device, self.dtype = checkpoint, device, dtype
        self._loaded: dict[str, Any] = {}
        self._loading = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (name not in NETWORKS and name not in _SMALL_PARTS):
            raise AttributeError(name)
        with self._loading:  # a second thread may ask for the text encoder; it must not be loaded twice
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
            return self._loaded[name]

    @property
    def holds_everything(self) -> bool:
        """Whether parts stay once they are loaded, so that two of them may run at once."""
        return type(self) is Models

    def is_loaded(self, name: str) -> bool:
        """Whether a part is in memory; asking for it as an attribute would load it."""
        return name in self._loaded

    def leave(self, *names: str) -> None:
        """A stage has done with these parts: nothing to do where everything stays."""

    def follow(self, plan: Plan, report: Callable[[str], None]) -> None:
        """A clip begins under ``plan``, which has the homes that there are; ``report`` is told what fell back."""

    def read_ahead(self) -> None:
        """The transformer is needed soon: nothing to do where everything stays."""

    @contextmanager
    def generating(self) -> Iterator[Any]:
        """The text encoder as something that can write text, for as long as it is open."""
        yield self.qwen

    def drop(self, *names: str) -> None:
        """Forget parts, so that their memory can be had by others; without names, all of them."""
        for name in names or tuple(self._loaded):
            self._loaded.pop(name, None)

    def _load(self, name: str) -> Any:
        return _SMALL_PARTS[name](self.checkpoint) if name in _SMALL_PARTS else self._load_network(name)

    def _load_network(self, name: str) -> Any:
        import diffusers
        import transformers

        transformers.utils.logging.disable_progress_bar()  # progress leaves the engine as events only
        library, folder, class_name = NETWORKS[name]
        cls = getattr({"diffusers": diffusers, "transformers": transformers}[library], class_name)
        path = str(self.checkpoint.folder / folder)
        with unreplaced(self.checkpoint.components[folder].files):
            return cls.from_pretrained(path, dtype=self.dtype, local_files_only=True).to(self.device).eval()


def _scheduler(checkpoint: Checkpoint) -> Any:
    import diffusers

    cls = getattr(diffusers, checkpoint.components["scheduler"].class_name)
    return cls.from_pretrained(str(checkpoint.folder / "scheduler"), local_files_only=True)


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """The plain tokenizer inside the Qwen processor's folder: equal ids, and no torchvision."""
    from transformers import AutoTokenizer

    folder = str(checkpoint.folder / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.padding_side != "right":
        raise CheckpointError(
            f"{folder}: padding_side is {tokenizer.padding_side!r}, expected 'right' "
            "(left padding would crop the prompt away); set it in tokenizer_config.json"
        )
    return tokenizer


def _clip_tokenizer(checkpoint: Checkpoint) -> Any:
    from transformers import CLIPTokenizer

    return CLIPTokenizer.from_pretrained(str(checkpoint.folder / "tokenizer_2"), local_files_only=True)


_SMALL_PARTS: dict[str, Any] = {
    "scheduler": _scheduler,
    "tokenizer": _tokenizer,
    "clip_tokenizer": _clip_tokenizer,
}
