"""Kept: the tensors of a module that come and go as a whole: on the device for a stage, in their home otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from yellowsound.checkpoint import Checkpoint, TensorEntry
from yellowsound.memory.device import Device
from yellowsound.memory.identity import FileIdentity
from yellowsound.memory.leaving import closing_with, resting_with
from yellowsound.memory.parts import (
    THREADS,
    build_empty,
    by_module_name,
    put_tensors,
    read_tensors,
    take_tensors,
    wanted_dtype,
)
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.reader import Reader, Report
from yellowsound.memory.units import Home


class Kept:
    """``wake`` puts the tensors into ``module``, ``rest`` takes them out again unless the device is their home.

    A RAM home is filled from disk once; afterwards no file is touched. A disk home is read at each ``wake``, from the
    very files that ``files`` names. The bits are those of the first time.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: Mapping[str, TensorEntry],
        wanted: Callable[[TensorEntry], str],
        home: Home,
        *,
        device: Device,
        files: Sequence[FileIdentity],
        folder: Path,
        report: Report,
    ) -> None:
        self._module, self._tensors, self._wanted, self._home = module, tensors, wanted, home
        self._device, self._files, self._folder, self._report = device, files, folder, report
        self._blocks: dict[str, HostBlock] = {}
        self._is_here = False

    def wake(self) -> None:
        """Bring the tensors. Raises ReadError, CheckpointError."""
        if self._is_here:
            return
        reader = Reader(self._files, threads=THREADS, report=self._report)
        try:
            blocks = self._blocks if self._home is Home.RAM else None
            tensors = read_tensors(self._device, reader, self._tensors, self._wanted, blocks)
        finally:
            reader.close()
        put_tensors(self._module, tensors, self._device.torch_device, where=str(self._folder))
        self._is_here = True

    def rest(self) -> None:
        """Give the device its memory back."""
        if self._is_here and self._home is not Home.VRAM:
            self._take_out()

    def close(self) -> None:
        """Give everything back, homes too."""
        self._take_out()
        for block in self._blocks.values():
            self._device.free(block)
        self._blocks.clear()

    def _take_out(self) -> None:
        take_tensors(self._module, self._tensors)
        self._is_here = False


def load_part(
    checkpoint: Checkpoint,
    component: str,
    device: Device,
    dtype: torch.dtype,
    home: Home = Home.VRAM,
    *,
    report: Report = lambda message: None,
) -> Any:
    """One whole part (``vae``, ``vocoder``, ``text_encoder_2``, ...) on ``device``, read past the page cache.

    Bit-equal in weights to the library's ``from_pretrained(dtype=...)``. home: where its weights are while it rests
    (``leaving.rest_streamed``). ``leaving.close_streamed`` gives everything back. Raises ReadError, CheckpointError.
    """
    module: Any = build_empty(checkpoint, component)
    kept = Kept(
        module,
        by_module_name(component, checkpoint.components[component].tensors.values()),
        wanted_dtype(component, dtype),
        home,
        device=device,
        files=checkpoint.components[component].files,
        folder=checkpoint.folder / component,
        report=report,
    )
    kept.wake()
    closing_with(module, kept)
    resting_with(module, kept)
    return module.eval()
