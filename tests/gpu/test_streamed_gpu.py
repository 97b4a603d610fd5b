"""Streamed equals resident on a card to the bit: copies lagging, blocks lagging, used slots poisoned."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from streaming_world import LAYOUTS, equal, make_clip, plan_of, run_in_turn, stock_transformer

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.device import CudaDevice, Stream
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.stack import close_streamed, predict, prepare_clip
from yellowsound.request import ClipRequest, Variant
from yellowsound.stages.denoise import denoise, predict_stock
from yellowsound.stages.latents import Latents, draw_latents
from yellowsound.stages.text import TextEmbeds
from yellowsound.weights.blueprint import Blueprint, transformer_part
from yellowsound.weights.shapes import transformer_config
from yellowsound.weights.synth import synthesize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIX_BLOCKS = {
    "model_dim": 512, "ff_dim": 2048, "time_dim": 128, "num_text_blocks": 2, "num_visual_blocks": 6, "model_dim_a": 256,
    "time_dim_a": 128, "ff_dim_a": 1024, "axes_dims": [16, 24, 24], "axes_dims_a": [16, 24, 24], "in_text_dim": 64,
    "in_text_dim2": 32,
}  # fmt: skip
REPETITIONS, STEPS = 20, 2
SPIN_CYCLES = 30_000_000  # about 16 ms, several times a block of this size
COPY_SPIN_CYCLES = 3_000_000


class LaggingDevice(CudaDevice):
    """A card whose copies or whose blocks wait behind a spinning kernel; a slot is poisoned as soon as it is free."""

    def __init__(self, lags: Stream | None) -> None:
        super().__init__(torch.device("cuda"))
        self._lags = lags

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        if self._lags is Stream.COPY:
            with torch.cuda.stream(self._stream(stream)):
                torch.cuda._sleep(COPY_SPIN_CYCLES)
        super().copy(target, source, stream)

    def run(self, work: Any, stream: Stream) -> Any:
        if self._lags is stream is Stream.COMPUTE:
            torch.cuda._sleep(SPIN_CYCLES)
        return super().run(work, stream)

    def retire(self, buffer: torch.Tensor, stream: Stream) -> None:
        with torch.cuda.stream(self._stream(stream)):
            buffer.fill_(0xFF)  # NaN in every stored dtype


@pytest.fixture(scope="module", params=["flow", "piflow"])
def six_blocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Random weights of six narrow blocks with the real head sizes' kernels (64) and a real scheduler."""
    variant: Variant = request.param
    part = transformer_part({**transformer_config("lite", variant), **SIX_BLOCKS}, variant)
    folder = tmp_path_factory.mktemp("six") / "blocks"
    synthesize(Blueprint("six", variant, (part,)), folder, pool_values=1 << 20)
    return Checkpoint.open(folder)


def make_inputs(checkpoint: Checkpoint, device: str, branches: int) -> tuple[Latents, list[TextEmbeds]]:
    """Noise with a picture's frame behind it, and one padded and one unpadded prompt."""
    request = ClipRequest(prompt="x", width=160, height=96, num_frames=17, seed=0).resolve(checkpoint.defaults)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, torch.bfloat16)

    latents = draw_latents(
        request, checkpoint.components["transformer"].config, first_frame=draw(1, 12, 20, 16), audio_length=31,
        dtype=torch.bfloat16, device=torch.device(device), generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    mask = (torch.arange(40) < 25)[None].to(device)
    padded, whole = TextEmbeds(draw(1, 40, 64), draw(1, 32), mask), TextEmbeds(draw(1, 33, 64), draw(1, 32), None)
    return latents, [padded, whole][:branches]


def make(transformer: Any, checkpoint: Checkpoint, device: str, *, streams: bool) -> Latents:
    """The engine's own loop: guidance for the flow model, none for the distilled one."""
    part = checkpoint.components["scheduler"]
    scheduler = getattr(diffusers, part.class_name).from_pretrained(str(part.folder))
    branches, guidance = (1, 1.0) if checkpoint.variant == "piflow" else (2, 5.0)
    latents, texts = make_inputs(checkpoint, device, branches)
    asked: dict[str, Any] = {"predict": predict_stock}
    if streams:
        asked = {"predict": predict, "prepare": partial(prepare_clip, transformer)}
    with torch.no_grad():
        return denoise(transformer, scheduler, latents, texts, guidance, STEPS, **asked)


def digest_of_buffers(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for name, buffer in model.named_buffers():
        found.update(name.encode() + buffer.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def is_same(one: Latents, other: Latents) -> bool:
    """Bit for bit in both modalities; NaN is never equal."""
    assert one.audio is not None and other.audio is not None
    return torch.equal(one.video, other.video) and torch.equal(one.audio, other.audio)


@pytest.mark.parametrize("lags", [None, Stream.COPY, Stream.COMPUTE], ids=["in step", "copies lag", "blocks lag"])
def test_streamed_equals_resident_twenty_times(six_blocks: Checkpoint, lags: Stream | None) -> None:
    folder = str(six_blocks.components["transformer"].folder)
    stock = diffusers.Kandinsky6Transformer3DModel.from_pretrained(folder, dtype=torch.bfloat16).to("cuda").eval()
    expected = make(stock, six_blocks, "cuda", streams=False)
    assert bool(expected.video.isfinite().all())
    device = LaggingDevice(lags)
    for slots, repetitions in ((2, 7), (3, 7), (5, 6)):  # one, two and four units ahead
        plan = plan_of(six_blocks, "RDRV", slots=slots, ring_bytes=16 << 20, chunk_bytes=1 << 20)
        model = load_streamed_transformer(six_blocks, plan, device, torch.bfloat16)
        before = digest_of_buffers(model)
        for repetition in range(repetitions):
            assert is_same(make(model, six_blocks, "cuda", streams=True), expected), (slots, repetition)
        assert digest_of_buffers(model) == before
        close_streamed(model)
    device.close()


@pytest.mark.parametrize("flavour", ["sft", "distill"])
@pytest.mark.parametrize("pattern", LAYOUTS)
def test_every_layout_of_the_tiny_models(tiny_sft: Path, tiny_distill: Path, flavour: str, pattern: str) -> None:
    folder = tiny_sft if flavour == "sft" else tiny_distill
    checkpoint, device = Checkpoint.open(folder), LaggingDevice(None)
    stock = stock_transformer(folder, torch.bfloat16).to("cuda")
    clip = make_clip(torch.bfloat16, steps=3, image=True, guidance=flavour == "sft").to("cuda")
    expected = run_in_turn(stock, clip)
    stock.to("cpu")
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, pattern), device, torch.bfloat16)
    with torch.no_grad():
        prepare_clip(model, clip.timesteps, clip.branches)
        outputs = [
            output
            for step in range(len(clip.timesteps))
            for output in predict(model, [clip.inputs(step, branch) for branch in range(len(clip.branches))])
        ]
    assert equal(outputs, expected)
    close_streamed(model)
    device.close()


def test_nothing_is_allocated_after_the_first_step(six_blocks: Checkpoint) -> None:
    device = LaggingDevice(None)
    plan = plan_of(six_blocks, "RD", slots=3, ring_bytes=16 << 20, chunk_bytes=1 << 20)
    model = load_streamed_transformer(six_blocks, plan, device, torch.bfloat16)
    make(model, six_blocks, "cuda", streams=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    make(model, six_blocks, "cuda", streams=True)
    assert torch.cuda.memory_reserved() == before
    close_streamed(model)
    device.close()
