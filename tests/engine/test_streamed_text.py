"""Qwen on the conveyor gives transformers' own bits, for encoding and for twenty greedy tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from streaming_world import plan_of
from transformers import Qwen2_5_VLForConditionalGeneration

from yellowsound.checkpoint import Checkpoint
from yellowsound.demo import folder as demo_folder
from yellowsound.events import Cancelled
from yellowsound.memory.device import InlineDevice
from yellowsound.memory.kept import load_part
from yellowsound.memory.leaving import rest_streamed, wake_streamed
from yellowsound.memory.stack import close_streamed
from yellowsound.memory.text_loader import load_streamed_text_encoder
from yellowsound.memory.units import Home
from yellowsound.stages.expand import seeded

DTYPES = (torch.float32, torch.bfloat16)


@cache
def stock(folder: Path, dtype: torch.dtype) -> Any:
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder / "text_encoder"), dtype=dtype).eval()


def prompt(length: int = 40, padding: int = 10) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 500, (1, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[:, length - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", ["V", "R", "D", "RD"])
def test_hidden_states_are_the_resident_ones(tiny_sft: Path, pattern: str, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, pattern), "cpu", dtype)
    with torch.no_grad():
        expected = stock(tiny_sft, dtype)(**prompt(), output_hidden_states=True).hidden_states[-1]
        for _ in range(2):
            assert torch.equal(model.model(**prompt(), use_cache=False).last_hidden_state, expected)
    close_streamed(model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_twenty_greedy_tokens_are_the_resident_ones(tiny_sft: Path, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    homes = dict.fromkeys(plan_of(checkpoint, "D").homes, Home.RAM)
    model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, "D"), "cpu", dtype, homes=homes, generate=True)
    options = {**prompt(20, 0), "max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False}
    with torch.no_grad():
        expected, found = stock(tiny_sft, dtype).generate(**options), model.generate(**options)
    assert expected.shape == (1, 40)
    assert torch.equal(found, expected)
    close_streamed(model)


@pytest.fixture(scope="module", params=["demo", "own head"])
def tied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's encoder, tied and without a head; or with one of its own, which transformers then leaves untied."""
    folder = demo_folder(cache=tmp_path_factory.mktemp("demo"))
    if request.param == "own head":
        file = folder / "text_encoder" / "model.safetensors"
        tensors = load_file(file)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
        save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_tied_head_writes_the_resident_tokens(tied: Path, sampled: bool, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open(tied)
    model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, "R"), "cpu", dtype, generate=True, vision=True)
    options = {**prompt(20, 0), "max_new_tokens": 40, "min_new_tokens": 40, "do_sample": sampled}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    with torch.no_grad(), seeded(4):
        expected = stock(tied, dtype).generate(**options)
    with torch.no_grad(), seeded(4):
        found = model.generate(**options)
    assert torch.equal(found.sequences, expected.sequences) and found.sequences.shape == (1, 60)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found.logits, expected.logits, strict=True))
    close_streamed(model)
    assert not [name for name, tensor in model.named_parameters() if not tensor.is_meta]


def test_a_tied_head_wakes_with_its_embedding(tied: Path) -> None:
    checkpoint = Checkpoint.open(tied)
    model = load_part(checkpoint, "text_encoder", InlineDevice(), torch.float32, Home.DISK)
    with torch.no_grad():
        expected = stock(tied, torch.float32)(**prompt()).logits
        for _ in range(2):
            assert torch.equal(model(**prompt()).logits, expected)
            rest_streamed(model)
            wake_streamed(model)
    close_streamed(model)


def test_the_layer_number_is_set_on_each_visit(tiny_sft: Path) -> None:
    """Left at zero, every layer would write into the first layer's cache."""
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, "R"), "cpu", torch.float32, generate=True)
    with torch.no_grad():
        cache = model.model(**prompt(20, 0), use_cache=True).past_key_values
    assert [layer.keys.shape[-2] for layer in cache.layers] == [20, 20]
    close_streamed(model)


def test_what_a_stage_does_not_need_is_not_loaded(tiny_sft: Path) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, "R"), "cpu", torch.float32)
    names = set(model.state_dict())
    assert not [name for name in names if "visual" in name or "lm_head" in name or "layers" in name]
    close_streamed(model)
    whole = load_streamed_text_encoder(
        checkpoint, plan_of(checkpoint, "R"), "cpu", torch.float32, generate=True, vision=True
    )
    names = set(whole.state_dict())
    assert {"lm_head.weight", "model.visual.patch_embed.proj.weight"} <= names
    close_streamed(whole)


def test_a_cancel_stops_before_the_next_layer(tiny_sft: Path) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    model = load_streamed_text_encoder(checkpoint, plan_of(checkpoint, "RD"), "cpu", torch.float32)
    stack = model.model.language_model.layers[0]
    stack.cancel.cancel()
    with torch.no_grad(), pytest.raises(Cancelled):
        model.model(**prompt(), use_cache=False)
    stack.cancel = type(stack.cancel)()
    with torch.no_grad():
        expected = stock(tiny_sft, torch.float32).model(**prompt(), use_cache=False).last_hidden_state
        assert torch.equal(model.model(**prompt(), use_cache=False).last_hidden_state, expected)
    close_streamed(model)
