"""A second clip reads from disk what the plan says lives there, gives the same bits, and leaks nothing."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.clip import Clip
from yellowsound.engine import Engine
from yellowsound.events import Cancelled, CancelToken, Event, Replanned, StepDone
from yellowsound.memory import streamed
from yellowsound.memory.device import InlineDevice
from yellowsound.memory.extents import Parcel
from yellowsound.memory.fake_device import FakeDevice
from yellowsound.memory.kept import load_part
from yellowsound.memory.leaving import close_streamed, rest_streamed, wake_streamed
from yellowsound.memory.parts import wanted_dtype
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.plan import Plan
from yellowsound.memory.reader import Reader, ReadRequest
from yellowsound.memory.stack import driver_of
from yellowsound.memory.text_loader import LayerStack, load_streamed_text_encoder
from yellowsound.memory.units import Home, units_of
from yellowsound.request import ClipRequest
from yellowsound.residency import Residency

SMALL: dict[str, Any] = {
    "prompt": "a cat",
    "height": 64,
    "width": 96,
    "num_frames": 5,
    "num_inference_steps": 1,
    "seed": 2,
}
# One unit in every home that a part can have: what a second clip reads is then known by name.
MIXED = {
    "text_encoder.layers.1": Home.DISK,
    "text_encoder_2": Home.VRAM,
    "audio_vae": Home.DISK,
    "transformer.rest": Home.VRAM,
    "transformer.visual_transformer_blocks.1": Home.VRAM,
}
PARTS = ("vae", "audio_vae", "vocoder", "text_encoder_2")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes read from weights files, by the folder they lie in."""
    found: Counter[str] = Counter()
    serve = Reader._serve

    def counting(reader: Reader, request: Any) -> None:
        serve(reader, request)
        if isinstance(request, ReadRequest):
            found[request.file.parent.name] += request.needed_bytes

    monkeypatch.setattr(Reader, "_serve", counting)
    return found


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, Home]], None]:
    """Plans get the homes of a test; where it names none, host memory."""
    planned = Residency.plan

    def lay_out(homes: Mapping[str, Home]) -> None:
        def plan(residency: Residency, request: ClipRequest) -> Plan:
            found = planned(residency, request)
            return replace(found, homes={unit: homes.get(unit, Home.RAM) for unit in found.homes})

        monkeypatch.setattr(Residency, "plan", plan)

    return lay_out


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    """Streamed engines that keep no prompt on disk, closed at the end."""
    opened: list[Engine] = []

    def load(folder: Path, **options: Any) -> Engine:
        engine = Engine.load(folder, device="cpu", **{"vram_bytes": 2_000_000, **options})
        engine._texts.folder = None
        opened.append(engine)
        return engine

    yield load
    for engine in opened:
        engine.close()


def assert_same(a: Clip, b: Clip) -> None:
    assert torch.equal(a.latents.video, b.latents.video) and torch.equal(a.latents.audio, b.latents.audio)
    assert np.array_equal(a.frames, b.frames) and np.array_equal(a.waveform, b.waveform)


def stored(folder: Path, *units: str) -> int:
    """Bytes that reading these units takes."""
    found = units_of(Checkpoint.open(folder), "float32")
    size = 0
    for unit in (found[name] for name in units):
        entries = {entry.name: entry for entry in unit.tensors}
        parcel = Parcel.build(unit.name, entries, wanted_dtype(unit.component, torch.float32), 64)
        size += sum(extent.needed_bytes for extent in parcel.extents)
    return size


def write_picture(path: Path) -> Path:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_a_second_clip_reads_what_the_plan_keeps_on_disk_and_gives_the_same_bits(
    tiny_distill: Path, tmp_path: Path, reads: Counter[str], laid_out: Any, engines: Callable[..., Engine]
) -> None:
    laid_out(MIXED)
    engine, resident = engines(tiny_distill), Engine.load(tiny_distill, device="cpu")
    audio = stored(tiny_distill, "audio_vae")
    layer = stored(tiny_distill, "text_encoder.layers.1")
    requests = {
        "first": (SMALL, None),
        "new prompt": ({**SMALL, "prompt": "a dog"}, {"audio_vae": audio, "text_encoder": layer}),
        "known prompt": (SMALL, {"audio_vae": audio}),
        "other seed": ({**SMALL, "seed": 3, "num_inference_steps": 2}, {"audio_vae": audio}),
        "image": ({**SMALL, "image": write_picture(tmp_path / "start.png")}, {"audio_vae": audio}),
        "again new": ({**SMALL, "prompt": "two birds"}, {"audio_vae": audio, "text_encoder": layer}),
    }
    for name, (values, expected) in requests.items():
        reads.clear()
        clip = engine.generate(ClipRequest(**values))
        assert clip.metadata["residency"] == "streamed"
        if expected is None:
            assert set(reads) == {"text_encoder", "text_encoder_2", "transformer", "vae", "audio_vae", "vocoder"}
        else:
            assert dict(reads) == expected, name
        assert_same(resident.generate(ClipRequest(**values)), clip)


def test_a_known_prompt_does_not_wake_the_encoder(
    tiny_sft: Path, laid_out: Any, engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out({})
    engine, asked = engines(tiny_sft), []
    request = ClipRequest(**SMALL, guidance_scale=5.0)
    engine.generate(request)
    load = streamed.StreamedModels._load_network
    monkeypatch.setattr(
        streamed.StreamedModels, "_load_network", lambda self, name: (asked.append(name), load(self, name))[1]
    )
    engine.generate(replace(request, seed=5))
    assert sorted(asked) == ["audio_vae", "vae", "vocoder"]
    asked.clear()
    engine.generate(replace(request, prompt="a dog"))  # the negative prompt is known
    assert sorted(asked) == ["audio_vae", "clip", "qwen", "vae", "vocoder"]


def test_with_everything_in_host_memory_the_disk_is_read_once(
    tiny_sft: Path, reads: Counter[str], laid_out: Any, engines: Callable[..., Engine]
) -> None:
    laid_out({"transformer.rest": Home.VRAM})
    engine, resident = engines(tiny_sft), Engine.load(tiny_sft, device="cpu")
    for prompt in ("a cat", "a dog"):
        request = ClipRequest(**{**SMALL, "prompt": prompt}, guidance_scale=5.0)
        clip = engine.generate(request)
        assert not reads or prompt == "a cat"
        assert_same(resident.generate(request), clip)
        reads.clear()


def test_between_stages_no_part_holds_device_memory(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine]
) -> None:
    laid_out({})
    engine = engines(tiny_distill)
    engine.generate(ClipRequest(**SMALL))
    for name, model in engine.models._resting.items():
        assert all(parameter.is_meta for parameter in model.parameters()), name
    qwen = engine.models._resting["qwen"]
    assert not qwen.model.language_model.layers[0]._conveyor._slots
    assert set(engine.models._resting) == {"qwen", "clip", "vae", "audio_vae", "vocoder"}


def test_six_clips_hold_no_more_than_two(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    blocks: list[HostBlock] = []
    alloc_host = InlineDevice.alloc_host
    monkeypatch.setattr(
        InlineDevice, "alloc_host", lambda self, size: (blocks.append(alloc_host(self, size)), blocks[-1])[1]
    )
    laid_out(MIXED)
    engine, held = engines(tiny_distill), []
    for number in range(6):
        engine.generate(ClipRequest(**{**SMALL, "prompt": f"cat {number}"}))
        gc.collect()
        tensors = sum(t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) is torch.nn.Parameter)
        host = sum(block.size_bytes for block in blocks if block.tensor is not None)
        held.append((host, tensors, threading.active_count(), len(os.listdir("/proc/self/fd"))))
    assert held[1] == held[5]
    engine.close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
    assert all(block.tensor is None for block in blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("home", list(Home))
@pytest.mark.parametrize("part", PARTS)
def test_a_part_wakes_as_it_was(tiny_sft: Path, part: str, home: Home, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_part(checkpoint, part, InlineDevice(), dtype, home)
    before = {name: tensor.clone() for name, tensor in {**model.state_dict(), **dict(model.named_buffers())}.items()}
    places = {name: tensor.data_ptr() % 64 for name, tensor in model.named_parameters()}
    for _ in range(2):
        rest_streamed(model)
        assert all(p.is_meta for p in model.parameters()) == (home is not Home.VRAM)
        wake_streamed(model)
        after = {**model.state_dict(), **dict(model.named_buffers())}
        assert after.keys() == before.keys()
        assert all(
            torch.equal(after[name], before[name]) and after[name].dtype == before[name].dtype for name in before
        )
        assert {name: tensor.data_ptr() % 64 for name, tensor in model.named_parameters()} == places
    close_streamed(model)


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize("order", ["early", "late", "random"])
def test_a_part_wakes_right_however_late_the_copies_run(tiny_sft: Path, order: Any, pins: bool) -> None:
    """Without page-locking the home passes the ring; streams run in the order a seed gives."""
    checkpoint = Checkpoint.open(tiny_sft)
    expected = load_part(checkpoint, "vocoder", InlineDevice(), torch.bfloat16).state_dict()
    model = load_part(checkpoint, "vocoder", FakeDevice(order, 3, pins=pins), torch.bfloat16, Home.RAM)
    for _ in range(2):
        found = model.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        rest_streamed(model)
        wake_streamed(model)
    close_streamed(model)


def test_a_read_error_on_waking_forgets_the_part(
    tiny_distill: Path, tmp_path: Path, laid_out: Any, engines: Callable[..., Engine]
) -> None:
    import shutil

    from yellowsound.memory.identity import ReadError

    laid_out({"vocoder": Home.DISK})
    folder = shutil.copytree(tiny_distill, tmp_path / "model")
    engine = engines(folder)
    first = engine.generate(ClipRequest(**SMALL))
    weights = next((folder / "vocoder").glob("*.safetensors"))
    kept, times = weights.read_bytes(), weights.stat()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(ReadError, match="replaced while in use"):
        engine.generate(ClipRequest(**SMALL))
    assert "vocoder" not in engine.models._resting and not engine.models.is_loaded("vocoder")
    assert engine.models._resting["vae"]
    weights.write_bytes(kept)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert_same(first, engine.generate(ClipRequest(**SMALL)))


def test_a_cancel_while_a_prompt_is_encoded_stops_before_the_next_layer(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out({"text_encoder.layers.1": Home.DISK})
    engine, cancel, visits = engines(tiny_distill), CancelToken(), []
    visit = LayerStack._visit

    def visiting(stack: LayerStack, number: int, compute: Any) -> Any:
        stack.cancel.check()
        visits.append(number)
        cancel.cancel()
        return visit_unchecked(stack, number, compute)

    def visit_unchecked(stack: LayerStack, number: int, compute: Any) -> Any:
        token, stack.cancel = stack.cancel, CancelToken()
        try:
            return visit(stack, number, compute)
        finally:
            stack.cancel = token

    with monkeypatch.context() as patch:
        patch.setattr(LayerStack, "_visit", visiting)
        with pytest.raises(Cancelled):
            engine.generate(ClipRequest(**SMALL), cancel=cancel)
    assert visits == [0]
    assert not engine.models.is_loaded("qwen")  # it rests: a cancelled clip holds no device memory
    clip = engine.generate(ClipRequest(**SMALL))
    assert_same(Engine.load(tiny_distill, device="cpu").generate(ClipRequest(**SMALL)), clip)


def test_homes_given_up_between_steps_are_told_to_the_clip_that_runs(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine]
) -> None:
    laid_out({})
    engine, told = engines(tiny_distill), []
    engine.generate(ClipRequest(**SMALL))
    driver = driver_of(engine.models.transformer)
    assert driver is not None and driver.seams.on_event is None
    driver.seams.watch = lambda: 1
    request = ClipRequest(**{**SMALL, "seed": 4, "num_inference_steps": 2})
    clip = engine.generate(request, on_event=told.append)
    reasons = [event.reason for event in told if isinstance(event, Replanned)]
    assert len(reasons) == 2 and "host memory ran short" in reasons[0]
    assert driver.seams.on_event is None
    assert_same(Engine.load(tiny_distill, device="cpu").generate(request), clip)


def test_reading_ahead_is_called_off_by_cancel_and_close(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine]
) -> None:
    """The transformer's first lap begins before the prompt is encoded; leaving then leaves nothing behind."""
    laid_out({})
    threads, engine, cancel = threading.active_count(), engines(tiny_distill), CancelToken()
    cancel_at: list[Event] = []

    def on_event(event: Event) -> None:
        if getattr(event, "stage", None) == "text":
            cancel_at.append(event)
            cancel.cancel()

    with pytest.raises(Cancelled):
        engine.generate(ClipRequest(**SMALL), on_event=on_event, cancel=cancel)
    assert cancel_at and engine.models.is_loaded("transformer")
    engine.close()
    assert threading.active_count() == threads


def test_prompts_encoded_ahead_leave_nothing_on_the_device(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine], reads: Counter[str]
) -> None:
    laid_out({"text_encoder.layers.0": Home.DISK})
    engine = engines(tiny_distill)
    engine.generate(ClipRequest(**SMALL))
    reads.clear()
    engine.encode_ahead(["a dog", "a bird"])
    assert dict(reads) == {"text_encoder": 2 * stored(tiny_distill, "text_encoder.layers.0")}
    assert not engine.models.is_loaded("qwen") and not engine.models.is_loaded("clip")
    reads.clear()
    steps: list[Event] = []
    engine.generate(ClipRequest(**{**SMALL, "prompt": "a dog"}), on_event=steps.append)
    assert not reads and any(isinstance(event, StepDone) for event in steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_encoder_gives_the_same_states_after_a_rest(tiny_sft: Path, dtype: torch.dtype) -> None:
    from streaming_world import plan_of

    checkpoint = Checkpoint.open(tiny_sft)
    ids = torch.randint(0, 500, (1, 40), generator=torch.Generator().manual_seed(3))
    for pattern in ("V", "R", "D", "RD", "DR"):
        model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, pattern), "cpu", dtype)
        with torch.no_grad():
            first = model.model(input_ids=ids, use_cache=False).last_hidden_state
            for _ in range(2):
                rest_streamed(model)
                wake_streamed(model)
                assert torch.equal(model.model(input_ids=ids, use_cache=False).last_hidden_state, first)
        close_streamed(model)


@pytest.mark.parametrize("kinds", [(), ("vram", "ram")])
def test_expansion_takes_the_homes_that_the_plan_says_and_a_later_clip_is_the_same(
    tiny_distill: Path,
    reads: Counter[str],
    laid_out: Any,
    engines: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
) -> None:
    laid_out(MIXED)
    hand_laid = Residency.plan

    def plan(residency: Residency, request: ClipRequest) -> Plan:
        found = hand_laid(residency, request)
        if found.expansion is None:
            return found
        emptied = replace(found.expansion, empties_vram="vram" in kinds, empties_ram="ram" in kinds)
        return replace(found, expansion=emptied)

    monkeypatch.setattr(Residency, "plan", plan)
    engine = engines(tiny_distill)
    engine.generate(ClipRequest(**SMALL))
    reads.clear()
    clip = engine.generate(ClipRequest(**SMALL, expand_prompt=True))
    assert clip.metadata["expanded_from"] == "a cat"
    assert ("transformer" in reads) == bool(kinds) and ("vae" in reads) == ("ram" in kinds)
    assert ("text_encoder_2" in reads) == ("vram" in kinds)
    assert not engine.models.is_loaded("qwen")
    again = ClipRequest(**{**SMALL, "prompt": clip.metadata["prompt"]})
    assert_same(Engine.load(tiny_distill, device="cpu").generate(again), clip)


def test_short_host_memory_takes_the_homes_of_resting_parts_first(
    tiny_distill: Path,
    reads: Counter[str],
    laid_out: Any,
    engines: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid_out({})
    engine, told = engines(tiny_distill), []
    first = engine.generate(ClipRequest(**SMALL))
    missing = [1]
    monkeypatch.setattr(streamed, "shortfall", lambda: missing.pop() if missing else 0)
    assert_same(first, engine.generate(ClipRequest(**SMALL), on_event=told.append))
    reasons = [event.reason for event in told if isinstance(event, Replanned)]
    assert len(reasons) == 1 and "text_encoder, 0." in reasons[0] and "every clip" in reasons[0]
    reads.clear()
    engine.generate(ClipRequest(**{**SMALL, "prompt": "a dog"}))
    engine.generate(ClipRequest(**{**SMALL, "prompt": "a bird"}))
    entries = [
        u for u in units_of(Checkpoint.open(tiny_distill)) if u.startswith(("text_encoder.layers", "text_encoder.rest"))
    ]
    assert dict(reads) == {"text_encoder": 2 * stored(tiny_distill, *entries)}


def test_a_courier_that_reads_ahead_changes_no_bit_and_leaves_nothing(
    tiny_distill: Path, laid_out: Any, engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a courier thread carries on by itself while texts are encoded and clips decoded; here it must, too."""
    from yellowsound.memory import loader

    conveyor = loader.Conveyor
    monkeypatch.setattr(loader, "Conveyor", lambda *args, **options: conveyor(*args, **{**options, "courier": True}))
    laid_out(MIXED)
    threads, engine = threading.active_count(), engines(tiny_distill)
    clips = [engine.generate(ClipRequest(**{**SMALL, "seed": seed})) for seed in (2, 3)]
    assert sum(thread.name == "courier" for thread in threading.enumerate()) == 2
    engine.close()
    assert threading.active_count() == threads
    resident = Engine.load(tiny_distill, device="cpu")
    for seed, clip in zip((2, 3), clips, strict=True):
        assert_same(resident.generate(ClipRequest(**{**SMALL, "seed": seed})), clip)
