"""Whole parts read through the conveyor equal what their libraries load: names, dtypes and bits."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from streaming_world import plan_of, stock_transformer

from yellowsound.checkpoint import Checkpoint, CheckpointError
from yellowsound.memory.device import InlineDevice
from yellowsound.memory.kept import load_part
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.parts import DIFFUSERS_CLASSES, TRANSFORMERS_CLASSES, put_tensors
from yellowsound.memory.stack import close_streamed, driver_of

PARTS = ["vae", "audio_vae", "vocoder", "text_encoder", "text_encoder_2", "transformer"]


def stock_part(folder: Path, part: str, dtype: torch.dtype) -> Any:
    library, classes = (
        (diffusers, DIFFUSERS_CLASSES) if part in DIFFUSERS_CLASSES else (transformers, TRANSFORMERS_CLASSES)
    )
    return getattr(library, classes[part]).from_pretrained(str(folder / part), dtype=dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_what_its_library_loads(tiny_sft: Path, part: str, dtype: torch.dtype) -> None:
    ours = load_part(Checkpoint.open(tiny_sft), part, InlineDevice(), dtype)
    theirs = stock_part(tiny_sft, part, dtype)
    found = {**dict(ours.named_parameters()), **dict(ours.named_buffers())}
    expected = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
    assert (ours.training, ours.dtype) == (False, theirs.dtype)


def test_time_embeddings_and_modulations_have_the_dtypes_of_stock(tiny_sft: Path) -> None:
    """Stock keeps four of the forty-eight in float32: the two heads' modulations."""
    stock = stock_transformer(tiny_sft, torch.bfloat16)
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, "V"), "cpu", torch.bfloat16)
    driver = driver_of(model)
    assert driver is not None
    found = {name: tensor.dtype for name, tensor in model.named_parameters()}
    for unit, berth in driver.conveyor._berths.items():
        path = unit.removeprefix("transformer.").removesuffix(".modulations")
        driver.conveyor.fill([unit])
        found |= {f"{path}.{key}": tensor.dtype for key, tensor in berth.home_views.items()}
    named = [name for name in dict(stock.named_parameters()) if "time_embeddings" in name or "modulation" in name]
    assert {name: found[name] for name in named} == {name: stock.get_parameter(name).dtype for name in named}
    kept = [name for name in named if found[name] == torch.float32]
    assert kept == [
        f"{head}.modulation.out_layer.{leaf}"
        for head in ("out_layer", "audio_out_layer")
        for leaf in ("weight", "bias")
    ]
    close_streamed(model)


def test_tensors_that_do_not_fit_are_named() -> None:
    module = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(
        CheckpointError, match=r"part: tensors do not fit the model: unknown wait; missing bias, weight"
    ):
        put_tensors(module, {"wait": torch.zeros(1)}, torch.device("cpu"), where="part")


def test_a_read_error_reaches_the_caller_and_leaves_nothing(tiny_sft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from yellowsound.memory import kept
    from yellowsound.memory.identity import ReadError
    from yellowsound.memory.reader import Reader

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(kept, "Reader", lambda *args, **options: Reader(*args, **options, preadv=failing))
    threads = threading.active_count()
    with pytest.raises(ReadError, match="Input/output error"):
        load_part(Checkpoint.open(tiny_sft), "vae", InlineDevice(), torch.float32)
    assert threading.active_count() == threads


@pytest.mark.parametrize("pattern", ["R", "D", "V"])
def test_a_read_error_in_the_middle_of_a_clip_is_an_error_and_not_a_picture(
    tiny_sft: Path, tmp_path: Path, pattern: str
) -> None:
    import shutil

    from streaming_world import make_clip, run_in_turn

    from yellowsound.memory.identity import ReadError

    folder = shutil.copytree(tiny_sft, tmp_path / "model")
    checkpoint = Checkpoint.open(folder)
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, pattern), "cpu", torch.float32)
    weights = next((folder / "transformer").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ReadError, match="replaced while in use"):
        run_in_turn(model, make_clip(torch.float32))
    close_streamed(model)
