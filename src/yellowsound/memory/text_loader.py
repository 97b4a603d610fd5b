"""The Qwen2.5-VL text encoder on the conveyor: its decoder layers stream, the rest is resident while it is open.

For encoding, call the inner model (``model.model(..., use_cache=False).last_hidden_state``). With ``generate`` the
whole model is there for transformers' own ``generate()``: the layer's number is set on each visit, because a cache
that is filled under the wrong number gives other tokens without an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from yellowsound.checkpoint import Checkpoint, CheckpointError, TensorEntry
from yellowsound.events import CancelToken
from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.device import Device, Stream, open_device
from yellowsound.memory.kept import Kept
from yellowsound.memory.leaving import closing_with, resting_with
from yellowsound.memory.loader import Sizes, conveyor_of, dtype_word
from yellowsound.memory.parts import (
    build_empty,
    by_module_name,
    open_reader,
    wanted_dtype,
)
from yellowsound.memory.reader import Report
from yellowsound.memory.shells import Shell
from yellowsound.memory.units import Home, units_of

_INSIDE_LAYER = re.compile(r"(?:^|\.)layers\.\d+\.(.+)$")


class TextResidency(Protocol):
    """What loading the text encoder needs of a plan."""

    @property
    def homes(self) -> Mapping[str, Home]: ...
    @property
    def text_slots(self) -> int: ...
    @property
    def text_slot_bytes(self) -> int: ...
    @property
    def ring_bytes(self) -> int: ...
    @property
    def chunk_bytes(self) -> int: ...


class LayerStack(nn.Module):
    """Runs all decoder layers in the place of their list. ``cancel`` is looked at before each layer."""

    def __init__(self, conveyor: Conveyor, device: Device, shell: Shell, order: Sequence[str], *, laps: bool) -> None:
        super().__init__()
        self.cancel = CancelToken()
        self._conveyor, self._device, self._shell = conveyor, device, shell
        self._order, self._following = tuple(order), tuple(order) if laps else ()

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        self._conveyor.begin_lap(self._order, self._following)
        try:
            for number in range(len(self._order)):
                hidden_states = self._visit(number, partial(self._shell.call, hidden_states, **kwargs))
        except BaseException:
            self._conveyor.abort()
            raise
        return hidden_states

    def prefill(self) -> None:
        """Start reading the first layers while something else is computed."""
        self._conveyor.begin_lap(self._order, self._following)

    def _visit(self, number: int, compute: Callable[[], Tensor]) -> Tensor:
        self.cancel.check()
        self._shell.bind(self._conveyor.acquire(self.cancel.check).tensors)
        self._shell.module.self_attn.layer_idx = number  # type: ignore[union-attr]
        output = self._device.run(compute, Stream.COMPUTE)
        self._conveyor.release()
        return output

    def rest(self) -> None:
        """Give the slots back; layers stay in their homes."""
        self._shell.unbind()
        self._conveyor.drop_slots()

    def wake(self) -> None:
        """Have the slots again."""
        self._conveyor.take_slots()

    def close(self) -> None:
        self._conveyor.close()
        self._shell.unbind()


def load_streamed_text_encoder(
    checkpoint: Checkpoint,
    plan: TextResidency,
    device: Device | torch.device | str,
    dtype: torch.dtype,
    *,
    homes: Mapping[str, Home] | None = None,
    generate: bool = False,
    vision: bool = False,
    report: Report = lambda message: None,
) -> Any:
    """transformers' Qwen2_5_VLForConditionalGeneration with streamed layers.

    homes: other homes than the plan's for the layers (expansion has its own). generate: the language head is there
    too. vision: the picture tower is there too. While it rests (``leaving.rest_streamed``) its weights are in the
    homes that the plan gives them. ``stack.close_streamed(model)`` gives everything back. Raises CheckpointError,
    ReadError.
    """
    where = open_device(device, report) if isinstance(device, str | torch.device) else device
    units = [u for u in units_of(checkpoint, dtype_word(dtype)).values() if u.component == "text_encoder"]
    layers = sorted((unit for unit in units if unit.kind == "layer"), key=lambda unit: unit.index)
    model: Any = build_empty(checkpoint, "text_encoder")
    shell = _take_layer(model, checkpoint)
    absent = [kind for kind, is_there in (("head", generate), ("vision", vision)) if not is_there]
    _leave_out(model, absent)
    resident = [unit for unit in units if unit.kind != "layer" and unit.kind not in absent]
    kept = Kept(
        model,
        by_module_name("text_encoder", [entry for unit in resident for entry in unit.tensors]),
        wanted_dtype("text_encoder", dtype),
        Home.VRAM if generate else plan.homes["text_encoder.rest"],
        device=where,
        files=checkpoint.components["text_encoder"].files,
        folder=checkpoint.folder / "text_encoder",
        report=report,
    )
    reader = open_reader(checkpoint, "text_encoder", report)
    try:
        kept.wake()
        sizes = Sizes(plan.text_slots, plan.text_slot_bytes, plan.ring_bytes, plan.chunk_bytes)
        conveyor = conveyor_of(layers, homes or plan.homes, sizes, where, reader, dtype, key_of=_inside_layer)
    except BaseException:
        kept.close()
        reader.close()
        raise
    if generate:
        _take_generation_config(model, checkpoint)
    stack = LayerStack(conveyor, where, shell, [unit.name for unit in layers], laps=generate)
    model.model.language_model.layers = nn.ModuleList([stack])
    closing_with(model, stack, kept, reader, where)
    resting_with(model, stack, kept)
    if not plan.text_slots:
        conveyor.fill([unit.name for unit in layers])
        conveyor.drop_slots()
    return model.eval()


def _take_layer(model: Any, checkpoint: Checkpoint) -> Shell:
    """One layer as the shell; its config still counts them all, so that caches have the right size."""
    text = model.model.language_model
    kinds = set(text.config.layer_types)
    if kinds != {"full_attention"}:
        raise CheckpointError(
            f"{checkpoint.folder / 'text_encoder'}: layers of kinds {', '.join(sorted(kinds))} cannot share a shell; "
            "only full_attention can stream"
        )
    shell = Shell(text.layers[0])
    text.layers = nn.ModuleList()
    return shell


def _take_generation_config(model: Any, checkpoint: Checkpoint) -> None:
    """What ``from_pretrained`` would do: sampling settings and stop tokens come from the folder."""
    from transformers import GenerationConfig

    folder = checkpoint.folder / "text_encoder"
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)


def _leave_out(model: Any, kinds: Sequence[str]) -> None:
    if "head" in kinds:
        model.lm_head = nn.Identity()
    if "vision" in kinds:
        model.model.visual = nn.Identity()


def _inside_layer(entry: TensorEntry) -> str:
    match = _INSIDE_LAYER.search(entry.name)
    return match[1] if match else entry.name
