"""A weight file replaced since the checkpoint was opened is an error, wherever and whenever it is loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from yellowsound.checkpoint import Checkpoint
from yellowsound.engine import Engine
from yellowsound.events import Event, StepDone
from yellowsound.memory.identity import FileIdentity, ReadError, unreplaced
from yellowsound.request import ClipRequest

SMALL: dict[str, Any] = {
    "prompt": "a cat",
    "height": 64,
    "width": 96,
    "num_frames": 9,
    "num_inference_steps": 3,
    "seed": 2,
}
WAYS: dict[str, dict[str, Any]] = {
    "none": {"offload": "none"},
    "auto": {"offload": "auto"},
    "block": {"offload": "block"},
    "budget": {"vram_bytes": 2_000_000},
}
on_every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def model(tiny_distill: Path, tmp_path: Path) -> Path:
    """A copy to replace files of."""
    return shutil.copytree(tiny_distill, tmp_path / "model")


def replace_weights(folder: Path, part: str, factor: float = 1.1) -> Path:
    """Move other weights of the same names, shapes, dtypes and size over those of ``part``."""
    (file,) = (folder / part).glob("*.safetensors")
    other = {name: (t * factor).to(t.dtype).contiguous() for name, t in load_file(file).items()}
    save_file(other, file.with_suffix(".new"), metadata={"format": "pt"})
    file.with_suffix(".new").rename(file)
    return file


def after_first_step(act: Callable[[], object]) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 1:
            act()

    return on_event


@on_every_way
@pytest.mark.parametrize("part", ["vae", "audio_vae", "vocoder"])
def test_a_part_replaced_in_the_middle_of_a_run(model: Path, part: str, way: str) -> None:
    engine = Engine.load(model, device="cpu", **WAYS[way])
    swap = after_first_step(lambda: replace_weights(model, part))
    with pytest.raises(
        ReadError, match=rf"^{model}/{part}/diffusion_pytorch_model\.safetensors: replaced while in use"
    ):
        engine.generate(ClipRequest(**SMALL), on_event=swap)
    engine.close()


@on_every_way
@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2", "transformer", "vae"])
def test_a_part_replaced_before_it_is_loaded(model: Path, part: str, way: str) -> None:
    engine = Engine.load(model, device="cpu", **WAYS[way])
    file = replace_weights(model, part)
    with pytest.raises(ReadError, match=rf"^{file}: replaced while in use"):
        engine.generate(ClipRequest(**SMALL))
    engine.close()


@on_every_way
def test_a_file_that_is_gone(model: Path, way: str) -> None:
    engine = Engine.load(model, device="cpu", **WAYS[way])
    (file,) = (model / "vae").glob("*.safetensors")
    with pytest.raises(ReadError, match=rf"^{file}: gone while in use"):
        engine.generate(ClipRequest(**SMALL), on_event=after_first_step(file.unlink))
    engine.close()


def test_a_checkpoint_opened_anew_takes_the_new_file(model: Path) -> None:
    before = Engine.load(model, device="cpu").generate(ClipRequest(**SMALL))
    replace_weights(model, "vae")
    after = Engine.load(model, device="cpu").generate(ClipRequest(**SMALL))
    streamed = Engine.load(model, device="cpu", offload="block").generate(ClipRequest(**SMALL))
    assert torch.equal(before.latents.video, after.latents.video)
    assert not np.array_equal(before.frames, after.frames)
    assert np.array_equal(streamed.frames, after.frames)


@on_every_way
def test_a_snapshot_of_links_is_held_to_the_files_behind_them(model: Path, tmp_path: Path, way: str) -> None:
    snapshot = tmp_path / "snapshot"
    for file in (path for path in model.rglob("*") if path.is_file()):
        link = snapshot / file.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    engine = Engine.load(snapshot, device="cpu", **WAYS[way])
    assert engine.generate(ClipRequest(**SMALL)).frames.shape[0] == 9
    engine.close()
    engine = Engine.load(snapshot, device="cpu", **WAYS[way])
    (link,) = (snapshot / "vae").glob("*.safetensors")
    other = shutil.copy(link.resolve(), tmp_path / "blob")
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(ReadError, match=rf"^{link}: replaced while in use"):
        engine.generate(ClipRequest(**SMALL))
    engine.close()


def test_a_library_that_fails_on_a_replaced_file_is_not_what_is_told(model: Path) -> None:
    file = next((model / "vae").glob("*.safetensors"))

    def loading() -> None:
        with unreplaced([FileIdentity.of(file)]):
            replace_weights(model, "vae")
            raise RuntimeError("size mismatch")

    with pytest.raises(ReadError, match="replaced while in use"):
        loading()


def test_a_checkpoint_knows_every_weight_file_as_it_was(model: Path) -> None:
    checkpoint = Checkpoint.open(model)
    for component in checkpoint.components.values():
        assert {identity.file for identity in component.files} == {t.file for t in component.tensors.values()}
        assert all(identity == FileIdentity.of(identity.file) for identity in component.files)
    file = next((model / "vae").glob("*.safetensors"))
    os.utime(file, ns=(0, 0))
    assert checkpoint.components["vae"].files != Checkpoint.open(model).components["vae"].files
