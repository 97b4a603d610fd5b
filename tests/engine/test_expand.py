"""Prompt expansion against Kandinsky6TI2VAPipeline.expand_prompts, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from yellowsound.events import Cancelled, CancelToken
from yellowsound.stages.expand import expand, load_image_processor, prepare

CPU = torch.device("cpu")
TOKENS = 24


@pytest.fixture(scope="module")
def encoder(tiny_distill: Path) -> Any:
    from transformers import Qwen2_5_VLForConditionalGeneration

    torch.set_num_threads(1)
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_distill / "text_encoder", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_distill: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_distill / "tokenizer", local_files_only=True)


@pytest.fixture(scope="module")
def processor(tiny_distill: Path, tokenizer: Any) -> Any:
    """transformers' own processor without its video half, which would need torchvision."""
    from transformers import Qwen2_5_VLProcessor

    processor = Qwen2_5_VLProcessor.__new__(Qwen2_5_VLProcessor)
    processor.image_processor, processor.tokenizer = load_image_processor(tiny_distill / "tokenizer"), tokenizer
    processor.video_processor, processor.chat_template = None, tokenizer.chat_template
    processor.image_token, processor.video_token = "<|image_pad|>", "<|video_pad|>"
    processor.image_token_id = tokenizer.convert_tokens_to_ids(processor.image_token)
    processor.video_token_id = tokenizer.convert_tokens_to_ids(processor.video_token)
    processor.image_token_ids, processor.video_token_ids = [processor.image_token_id], [processor.video_token_id]
    return processor


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (90, 130, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def stock(prompt: str, processor: Any, encoder: Any, seed: int, image: Image.Image | None = None) -> str:
    from diffusers import Kandinsky6TI2VAPipeline

    generator = torch.Generator().manual_seed(seed)
    text = Kandinsky6TI2VAPipeline.expand_prompts(
        prompt, processor, encoder, CPU, image=image, max_sequence_length=TOKENS, generator=generator
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_equals_stock(encoder: Any, tokenizer: Any, seed: int) -> None:
    ours = expand("a cat <S>hi<E> {x}", tokenizer, encoder, seed=seed, device=CPU, max_new_tokens=TOKENS)
    assert ours == stock("a cat <S>hi<E> {x}", tokenizer, encoder, seed) and ours


def test_seeds_differ(encoder: Any, tokenizer: Any) -> None:
    texts = {expand("a cat", tokenizer, encoder, seed=s, device=CPU, max_new_tokens=TOKENS) for s in range(4)}
    assert len(texts) == 4


def test_image_inputs_are_the_processors_own(processor: Any, tokenizer: Any, picture: Image.Image) -> None:
    ours = prepare("it rolls", tokenizer, picture, processor.image_processor)
    from yellowsound.stages.expand import _content

    text = processor.apply_chat_template(
        [{"role": "user", "content": _content("it rolls", picture)}], tokenize=False, add_generation_prompt=True
    )
    theirs = processor(text=[text], images=[picture], videos=None, padding=True, return_tensors="pt")
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name
    grid = ours["image_grid_thw"][0]
    assert int(ours["mm_token_type_ids"].sum()) == int(grid.prod()) // 4 > 1


def test_image_grounded_equals_stock(encoder: Any, tokenizer: Any, processor: Any, picture: Image.Image) -> None:
    ours = expand(
        "it rolls",
        tokenizer,
        encoder,
        seed=3,
        device=CPU,
        image=picture,
        image_processor=processor.image_processor,
        max_new_tokens=TOKENS,
    )
    assert ours == stock("it rolls", processor, encoder, 3, picture)
    assert ours != expand("it rolls", tokenizer, encoder, seed=3, device=CPU, max_new_tokens=TOKENS)


def test_global_random_state_is_put_back(encoder: Any, tokenizer: Any) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    expand("a cat", tokenizer, encoder, seed=1, device=CPU, max_new_tokens=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    stock("a cat", tokenizer, encoder, 1)
    assert not torch.equal(torch.random.get_rng_state(), before)


def test_cancel_stops_before_the_next_token(encoder: Any, tokenizer: Any) -> None:
    token, seen = CancelToken(), 0

    def check() -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            token.cancel()
        token.check()

    before = torch.random.get_rng_state()
    with pytest.raises(Cancelled):
        expand("a cat", tokenizer, encoder, seed=1, device=CPU, check_cancel=check)
    assert seen == 3 and torch.equal(torch.random.get_rng_state(), before)


def test_watching_changes_no_token(encoder: Any, tokenizer: Any) -> None:
    plain = expand("a cat", tokenizer, encoder, seed=1, device=CPU, max_new_tokens=TOKENS)
    watched = expand("a cat", tokenizer, encoder, seed=1, device=CPU, max_new_tokens=TOKENS, check_cancel=lambda: None)
    assert plain == watched


def test_image_without_its_processor(encoder: Any, tokenizer: Any, picture: Image.Image) -> None:
    with pytest.raises(ValueError, match="image processor"):
        expand("a cat", tokenizer, encoder, seed=1, device=CPU, image=picture)
