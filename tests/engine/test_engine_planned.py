"""The engine under a plan: streamed clips equal resident ones, and what cannot fit is refused before work."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from yellowsound.clip import Clip
from yellowsound.demo import folder as demo_folder
from yellowsound.engine import Engine
from yellowsound.events import Cancelled, CancelToken, Event, Replanned, StageBegan, StepDone, Warned
from yellowsound.memory.plan import PlanError
from yellowsound.memory.units import Home
from yellowsound.request import ClipRequest

SMALL: dict[str, Any] = {
    "prompt": "a cat",
    "height": 64,
    "width": 96,
    "num_frames": 9,
    "num_inference_steps": 3,
    "seed": 2,
}
BUDGET = 2_000_000  # of about 13 MB of weights


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def assert_same(a: Clip, b: Clip) -> None:
    assert torch.equal(a.latents.video, b.latents.video) and torch.equal(a.latents.audio, b.latents.audio)
    assert np.array_equal(a.frames, b.frames) and np.array_equal(a.waveform, b.waveform)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("flavour", "guidance"), [("sft", 5.0), ("distill", 1.0)])
def test_a_budget_smaller_than_the_weights_changes_no_bit(
    flavour: str, guidance: float, dtype: str, tiny_sft: Path, tiny_distill: Path
) -> None:
    folder = {"sft": tiny_sft, "distill": tiny_distill}[flavour]
    request = ClipRequest(**SMALL, guidance_scale=guidance)
    resident = Engine.load(folder, device="cpu", dtype=dtype)
    budget = BUDGET if dtype == "float32" else BUDGET // 2
    streamed = Engine.load(folder, device="cpu", dtype=dtype, vram_bytes=budget)
    streamed._texts.folder = None  # the encoder must stream too
    clip = streamed.generate(request)
    assert clip.metadata["residency"] == "streamed"
    homes = list(streamed.plan(request).homes.values())
    assert homes.count(Home.RAM) > 0 and homes.count(Home.VRAM) < len(homes) / 2
    assert_same(resident.generate(request), clip)
    assert_same(clip, streamed.generate(request))  # a warm clip, from homes instead of files
    threads = threading.active_count()
    streamed.close()
    assert threading.active_count() < threads


def test_offload_block_streams_every_block(tiny_distill: Path) -> None:
    request = ClipRequest(**SMALL)
    engine = Engine.load(tiny_distill, device="cpu", offload="block", vram_bytes=BUDGET * 2)
    blocks = [home for unit, home in engine.plan(request).homes.items() if unit.endswith(("blocks.0", "blocks.3"))]
    assert blocks and Home.VRAM not in blocks
    assert_same(Engine.load(tiny_distill, device="cpu").generate(request), engine.generate(request))


def test_what_cannot_fit_is_refused_before_work(tiny_distill: Path, tmp_path: Path) -> None:
    engine, events = Engine.load(tiny_distill, device="cpu", vram_bytes=1000), []
    with pytest.raises(PlanError, match=r"lacks .* VRAM; .*raise --vram"):
        engine.generate(ClipRequest(**SMALL), on_event=events.append, out=tmp_path / "clip.mp4")
    assert not any(isinstance(event, StageBegan) for event in events) and not list(tmp_path.iterdir())


def test_another_geometry_is_planned_anew_and_told(tiny_distill: Path) -> None:
    engine = Engine.load(tiny_distill, device="cpu", vram_bytes=BUDGET)
    engine.generate(ClipRequest(**SMALL))
    told: list[Event] = []
    larger = ClipRequest(**{**SMALL, "num_frames": 33, "num_inference_steps": 2})
    clip = engine.generate(larger, on_event=told.append)
    resident = Engine.load(tiny_distill, device="cpu").generate(larger)
    assert_same(resident, clip)
    changed = engine.plan(larger).homes != engine.plan(ClipRequest(**SMALL)).homes
    assert any(isinstance(event, Replanned) for event in told) == changed


def test_cancel_between_streamed_blocks(tiny_distill: Path) -> None:
    engine, cancel, steps = Engine.load(tiny_distill, device="cpu", vram_bytes=BUDGET), CancelToken(), []

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone):
            steps.append(event.step)
            cancel.cancel()

    with pytest.raises(Cancelled):
        engine.generate(ClipRequest(**SMALL), on_event=on_event, cancel=cancel)
    assert steps == [1]
    assert_same(
        Engine.load(tiny_distill, device="cpu").generate(ClipRequest(**SMALL)), engine.generate(ClipRequest(**SMALL))
    )


def test_expansion_is_what_is_encoded_and_told(tiny_distill: Path) -> None:
    request = ClipRequest(**SMALL, expand_prompt=True)
    resident = Engine.load(tiny_distill, device="cpu").generate(request)
    streamed = Engine.load(tiny_distill, device="cpu", vram_bytes=BUDGET).generate(request)
    assert resident.metadata["expanded_from"] == "a cat" and resident.metadata["prompt"] != "a cat"
    assert streamed.metadata["prompt"] == resident.metadata["prompt"]
    assert_same(resident, streamed)
    again = ClipRequest(**{**SMALL, "prompt": resident.metadata["prompt"]})
    assert_same(resident, Engine.load(tiny_distill, device="cpu").generate(again))


@pytest.mark.parametrize("limits", [{}, {"offload": "block"}, {"vram_bytes": 8 << 20}], ids=str)
def test_the_demos_blank_expansion_leaves_the_users_prompt_and_says_so(limits: dict[str, Any], tmp_path: Path) -> None:
    """Its toy encoder writes blanks, with a head tied to its embedding."""
    engine, told = Engine.load(demo_folder(cache=tmp_path), device="cpu", **limits), []
    request = ClipRequest(**SMALL)
    clip = engine.generate(replace(request, expand_prompt=True), on_event=told.append)
    (warning,) = [event.message for event in told if isinstance(event, Warned) and "expand_prompt" in event.message]
    assert "wrote no usable prompt (must say something: it is empty or blank)" in warning
    assert warning in clip.metadata["warnings"]
    assert (clip.metadata["prompt"], clip.metadata["expanded_from"]) == ("a cat", None)
    assert_same(Engine.load(engine.checkpoint, device="cpu").generate(request), clip)
    engine.close()


@pytest.mark.parametrize("text", ["", " \n", "a\0cat", "x" * 32_001])
def test_an_expansion_that_is_no_prompt_is_told_and_not_taken(
    tiny_distill: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("yellowsound.engine.expand", lambda *args, **options: text)
    clip = Engine.load(tiny_distill, device="cpu").generate(ClipRequest(**SMALL, expand_prompt=True))
    assert (clip.metadata["prompt"], clip.metadata["expanded_from"]) == ("a cat", None)
    assert [message for message in clip.metadata["warnings"] if message.startswith("expand_prompt: ")]
