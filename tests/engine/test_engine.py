"""The engine around the networks: events, cancelling, files, seeds, previews, what it refuses."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from yellowsound.clip import read_metadata
from yellowsound.engine import Engine
from yellowsound.events import Cancelled, CancelToken, Event, Preview, StageBegan, StageEnded, StepDone, Warned
from yellowsound.recipe import find_recipe
from yellowsound.request import ClipRequest, RequestError

SMALL: dict[str, Any] = {"prompt": "a cat", "height": 48, "width": 32, "num_frames": 5, "num_inference_steps": 4}


@pytest.fixture(scope="module")
def engine(tiny_distill: Path) -> Engine:
    torch.set_num_threads(1)
    return Engine.load(tiny_distill, device="cpu")


def count_calls(engine: Engine, name: str) -> list[int]:
    """How often a network ran, as the length of a list that grows."""
    calls: list[int] = []
    getattr(engine.models, name).register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


def test_events_tell_the_whole_road(engine: Engine, tmp_path: Path) -> None:
    events: list[Event] = []
    engine.generate(ClipRequest(**SMALL, seed=1), on_event=events.append, out=tmp_path / "clip.mp4")
    began = [e.stage for e in events if isinstance(e, StageBegan)]
    assert [s for s in began if s != "load"] == ["text", "denoise", "decode", "mux"]
    assert began == [e.stage for e in events if isinstance(e, StageEnded)]
    assert [(e.step, e.steps) for e in events if isinstance(e, StepDone)] == [(i, 4) for i in range(1, 5)]
    previews = [e for e in events if isinstance(e, Preview)]
    assert [p.step for p in previews] == [2, 3, 4]
    assert previews[0].strip.shape == (6, 2 * 4, 3)  # two latent frames of 48/8 x 32/8
    assert all(e.to_json()["type"] == type(e).__name__ for e in events)


def test_previews_gain_colour_from_the_first_decode(tiny_distill: Path) -> None:
    engine = Engine.load(tiny_distill, device="cpu")
    strips: list[Any] = []

    def keep(event: Event) -> None:
        if isinstance(event, Preview):
            strips.append(event.strip)

    engine.generate(ClipRequest(**SMALL, seed=1), on_event=keep)
    assert all(np.array_equal(s[..., 0], s[..., 2]) for s in strips)
    strips.clear()
    engine.generate(ClipRequest(**SMALL, seed=1), on_event=keep)
    assert any(not np.array_equal(s[..., 0], s[..., 2]) for s in strips)


def test_the_same_seed_repeats_and_another_differs(engine: Engine) -> None:
    first, again, other = (engine.generate(ClipRequest(**SMALL, seed=s)) for s in (2**63 - 1, 2**63 - 1, 5))
    assert np.array_equal(first.frames, again.frames) and np.array_equal(first.waveform, again.waveform)
    assert not np.array_equal(first.frames, other.frames)


def test_an_absent_seed_is_drawn_and_shown(engine: Engine) -> None:
    clip = engine.generate(ClipRequest(**SMALL))
    again = engine.generate(ClipRequest(**SMALL, seed=clip.metadata["seed"]))
    assert np.array_equal(clip.frames, again.frames)


def test_prompts_do_not_leak_into_each_other(engine: Engine) -> None:
    a, _, again = (engine.generate(ClipRequest(**{**SMALL, "prompt": p}, seed=3)) for p in ("one", "two", "one"))
    assert torch.equal(a.latents.video, again.latents.video)


def test_step_count_is_the_number_of_forwards(engine: Engine) -> None:
    calls = count_calls(engine, "transformer")
    engine.generate(ClipRequest(**{**SMALL, "num_inference_steps": 16}, guidance_scale=1.0))
    assert len(calls) == 16


def test_distilled_refuses_guidance_before_any_work(engine: Engine) -> None:
    calls = count_calls(engine, "transformer")
    with pytest.raises(RequestError, match=r"guidance_scale=5\.0.*1\.0"):
        engine.generate(ClipRequest(**SMALL, guidance_scale=5.0))
    assert not calls


@pytest.mark.parametrize("steps, note", [(50, "distilled: 10 recommended"), (10, None)])
def test_far_step_counts_are_warned_about(engine: Engine, steps: int, note: str | None) -> None:
    notes = ClipRequest(**{**SMALL, "num_inference_steps": steps}).resolve(engine.checkpoint.defaults).warnings
    assert (note is None and not notes) or any(note in n for n in notes)


def test_defaults_by_variant(tiny_sft: Path, engine: Engine) -> None:
    distilled = ClipRequest(prompt="x").resolve(engine.checkpoint.defaults)
    base = ClipRequest(prompt="x").resolve(Engine.load(tiny_sft, device="cpu").checkpoint.defaults)
    assert (distilled.num_inference_steps, distilled.guidance_scale) == (10, 1.0)
    assert (base.num_inference_steps, base.guidance_scale) == (50, 5.0)
    assert (base.width, base.height, base.num_frames, base.frame_rate) == (864, 480, 121, 24.0)


@pytest.mark.parametrize("stop_at", ["text", "step", "decode"])
def test_cancel_stops_within_a_block_and_leaves_nothing(tiny_distill: Path, tmp_path: Path, stop_at: str) -> None:
    engine, cancel = Engine.load(tiny_distill, device="cpu"), CancelToken()
    blocks: list[int] = []
    vocoder_calls: list[int] = []

    def on_event(event: Event) -> None:
        if isinstance(event, StageBegan) and event.stage == stop_at:
            cancel.cancel()
        if isinstance(event, StepDone) and stop_at == "step" and event.step == 2:
            cancel.cancel()
            engine.models.transformer.visual_transformer_blocks[0].register_forward_hook(lambda *_: blocks.append(1))
            engine.models.vocoder.register_forward_hook(lambda *_: vocoder_calls.append(1))

    with pytest.raises(Cancelled):
        engine.generate(ClipRequest(**SMALL), on_event=on_event, cancel=cancel, out=tmp_path / "clip.mp4")
    assert not blocks and not vocoder_calls
    assert list(tmp_path.iterdir()) == []
    clip = engine.generate(ClipRequest(**SMALL, seed=4))  # the engine is as good as new
    assert np.array_equal(
        clip.frames, Engine.load(tiny_distill, device="cpu").generate(ClipRequest(**SMALL, seed=4)).frames
    )


def test_cancel_inside_a_forward(engine: Engine) -> None:
    cancel, ran = CancelToken(), []
    stack = engine.models.transformer.visual_transformer_blocks
    handles = [
        stack[1].register_forward_hook(lambda *_: cancel.cancel()),
        stack[2].register_forward_hook(lambda *_: ran.append(1)),
    ]
    with pytest.raises(Cancelled):
        engine.generate(ClipRequest(**SMALL), cancel=cancel)
    for handle in handles:
        handle.remove()
    assert not ran


def test_the_file_carries_its_request(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "кот.mp4"
    engine.generate(ClipRequest(**{**SMALL, "prompt": "кот 猫 🐈\nline"}, seed=9007199254740993), out=path)
    kept = read_metadata(path)
    assert kept["prompt"] == "кот 猫 🐈\nline" and kept["seed"] == 9007199254740993
    assert kept["level"] == "exact" and kept["checkpoint"] and kept["versions"]["diffusers"]


def test_a_file_written_beside_its_clip_leaves_out_what_is_not_over(engine: Engine, tmp_path: Path) -> None:
    clip = engine.generate(ClipRequest(**SMALL), out=tmp_path / "clip.mp4")
    measured = {"seconds", "peak_vram_bytes", "peak_ram_bytes"}
    assert {"denoise", "decode", "mux"} <= set(clip.metadata["seconds"])
    assert read_metadata(tmp_path / "clip.mp4") == {k: v for k, v in clip.metadata.items() if k not in measured}
    clip.save(tmp_path / "saved.mp4")
    assert read_metadata(tmp_path / "saved.mp4") == clip.metadata


def test_a_taken_name_is_refused_before_any_work(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"mine")
    calls = count_calls(engine, "transformer")
    with pytest.raises(FileExistsError, match=r"clip\.mp4"):
        engine.generate(ClipRequest(**SMALL), out=path)
    assert path.read_bytes() == b"mine" and not calls
    engine.generate(ClipRequest(**SMALL), out=path, overwrite=True)
    assert path.stat().st_size > 1000


def test_not_a_number_fails_before_decoding(tiny_distill: Path, tmp_path: Path) -> None:
    from yellowsound.stages.decode import NotFiniteError

    engine = Engine.load(tiny_distill, device="cpu")
    with torch.no_grad():
        engine.models.transformer.out_layer.out_layer.bias.fill_(float("nan"))
    decodes = count_calls(engine, "vae")
    with pytest.raises(NotFiniteError, match="video"):
        engine.generate(ClipRequest(**SMALL), out=tmp_path / "clip.mp4")
    assert not decodes and list(tmp_path.iterdir()) == []


def test_rounded_frames_are_told(engine: Engine) -> None:
    told: list[str] = []
    clip = engine.generate(
        ClipRequest(**{**SMALL, "num_frames": 4}),
        on_event=lambda e: told.append(e.message) if isinstance(e, Warned) else None,
    )
    assert len(clip.frames) == 5 == clip.metadata["num_frames"]
    assert any("5 frames" in message for message in told)


def test_a_known_prompt_loads_no_encoder(tiny_distill: Path) -> None:
    first = Engine.load(tiny_distill, device="cpu")
    clip = first.generate(ClipRequest(**SMALL, seed=1))
    second = Engine.load(tiny_distill, device="cpu")
    again = second.generate(ClipRequest(**SMALL, seed=1))
    assert not second.models.is_loaded("qwen")
    assert torch.equal(clip.latents.video, again.latents.video)


def test_a_finished_clip_is_let_go(engine: Engine) -> None:
    clip = engine.generate(ClipRequest(**SMALL))
    latents = weakref.ref(clip.latents.video)
    del clip
    gc.collect()
    assert latents() is None


@pytest.mark.parametrize(
    ("name", "value"), [("device", "cuda:7"), ("device", "banana"), ("dtype", "float16"), ("dtype", "int8")]
)
def test_wrong_places_are_refused(tiny_distill: Path, name: str, value: str) -> None:
    with pytest.raises(RequestError, match=name):
        Engine.load(tiny_distill, **{name: value})


def test_another_thread_may_encode_the_next_prompt_while_a_clip_denoises(tiny_distill: Path) -> None:
    engine, helper = Engine.load(tiny_distill, device="cpu"), []
    assert not engine.encodes_beside_a_job  # nothing was planned yet

    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 1:
            assert engine.encodes_beside_a_job
            helper.append(threading.Thread(target=engine.encode_ahead, args=(["the next one"],)))
            helper[0].start()

    first = engine.generate(ClipRequest(**SMALL, seed=6), on_event=on_event)
    helper[0].join(60)
    assert engine._texts.get("the next one") is not None
    alone = Engine.load(tiny_distill, device="cpu")
    assert torch.equal(first.latents.video, alone.generate(ClipRequest(**SMALL, seed=6)).latents.video)
    following = ClipRequest(**{**SMALL, "prompt": "the next one"}, seed=6)
    assert torch.equal(engine.generate(following).latents.video, alone.generate(following).latents.video)


def test_a_streamed_engine_encodes_between_clips_only(tiny_distill: Path) -> None:
    engine = Engine.load(tiny_distill, device="cpu", vram_bytes=4_000_000)
    engine.generate(ClipRequest(**SMALL, seed=6))
    assert not engine.encodes_beside_a_job
    engine.close()


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_trimming_the_prompt_is_the_same_arithmetic_in_another_order(tiny_sft: Path, guidance: float) -> None:
    request = ClipRequest(seed=3, guidance_scale=guidance, **SMALL)
    exact = Engine.load(tiny_sft, device="cpu").generate(request)
    trimmed = Engine.load(tiny_sft, device="cpu", recipe=find_recipe("trimmed")).generate(request)
    assert (exact.metadata["level"], trimmed.metadata["level"]) == ("exact", "reordered")
    assert trimmed.metadata["recipe"] == "trimmed"
    assert trimmed.latents is not None and exact.latents is not None
    torch.testing.assert_close(trimmed.latents.video, exact.latents.video, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(trimmed.latents.audio, exact.latents.audio, rtol=1e-4, atol=1e-4)
