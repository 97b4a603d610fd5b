"""Reads and writes the checkpoint's parts in a work folder that is laid out like the package's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import logging as diffusers_logging
from torch import nn

diffusers_logging.set_verbosity_error()  # stored in bf16 on purpose, modulations too


def load(kind: Any, folder: Path, device: str) -> Any:
    """A part as float32 on ``device``, with every weight trainable."""
    return kind.from_pretrained(folder, dtype=torch.float32).to(device).train()


def save(model: nn.Module, folder: Path, *, ready: bool = False) -> None:
    """Write ``model`` as bf16 under another name, then put it in place; ``ready`` tells waiting stages."""
    fresh = folder.parent / f".{folder.name}-new"
    shutil.rmtree(fresh, ignore_errors=True)
    kind: Any = type(model)
    copy = kind.from_config(model.config)
    copy.load_state_dict({name: value.detach().float().cpu() for name, value in model.state_dict().items()})
    copy.to(torch.bfloat16).save_pretrained(fresh)
    for path in fresh.iterdir():
        path.chmod(0o644)
        path.replace(folder / path.name)
    fresh.rmdir()
    if ready:
        (folder / "READY").touch()


def is_ready(folder: Path) -> bool:
    """Whether the stage that trains this part has finished it."""
    return (folder / "READY").exists()
