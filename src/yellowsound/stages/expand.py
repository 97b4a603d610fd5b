"""The expand stage: the checkpoint's own Qwen2.5-VL writes a short prompt out, grounded on the image if there is one.

Token for token what ``Kandinsky6TI2VAPipeline.expand_prompts`` gives for the same seed, with two differences: the
global random state is put back afterwards, and cancelling is looked at before every token. The text encoder may be any
object whose ``generate`` behaves like the stock model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

MAX_NEW_TOKENS = 1024


def expand(
    prompt: str,
    tokenizer: Any,
    text_encoder: Any,
    *,
    seed: int,
    device: torch.device,
    image: Image.Image | None = None,
    image_processor: Any = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    check_cancel: Callable[[], None] | None = None,
) -> str:
    """The prompt as the model rewrites it: sampled as its generation config says, from ``seed``.

    tokenizer: the plain tokenizer of the checkpoint's ``tokenizer`` folder. image: RGB, with ``image_processor``
    (``load_image_processor``). check_cancel: called before each token; what it raises stops the generation.
    Raises ValueError when an image comes without its processor.
    """
    inputs = prepare(prompt, tokenizer, image, image_processor).to(device)
    stopping = {"stopping_criteria": [_Watch(check_cancel)]} if check_cancel is not None else {}
    with seeded(seed), torch.no_grad():
        tokens = text_encoder.generate(**inputs, max_new_tokens=max_new_tokens, **stopping)
    new = tokens[:, inputs["input_ids"].shape[1] :]
    return str(tokenizer.batch_decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)[0])


def prepare(prompt: str, tokenizer: Any, image: Image.Image | None, image_processor: Any) -> Any:
    """The model's inputs: the instruction in the chat template and, with an image, its patches and token types."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": _content(prompt, image)}], tokenize=False, add_generation_prompt=True
    )
    if image is None:
        return tokenizer(text=[text], padding=True, return_tensors="pt")
    if image_processor is None:
        raise ValueError("an image needs the checkpoint's image processor: pass load_image_processor(folder)")
    pictures = image_processor(images=[image], return_tensors="pt")
    pad = getattr(tokenizer, "image_token", "<|image_pad|>")
    count = int(pictures["image_grid_thw"][0].prod()) // image_processor.merge_size**2
    inputs = tokenizer(text=[text.replace(pad, pad * count, 1)], padding=True, return_tensors="pt")
    kinds = (inputs["input_ids"] == tokenizer.convert_tokens_to_ids(pad)).to(inputs["input_ids"].dtype)
    inputs.update({**pictures, "mm_token_type_ids": kinds})
    return inputs


def load_image_processor(tokenizer_folder: str | Path) -> Any:
    """The image half of the checkpoint's Qwen processor: with torchvision the one stock uses, else the Pillow one.

    The two resize with other rounding, so their patches differ slightly; each is what transformers gives there.
    """
    if find_spec("torchvision") is not None:
        from transformers import Qwen2VLImageProcessor as Processor
    else:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil as Processor
    return Processor.from_pretrained(str(tokenizer_folder), local_files_only=True)


@lru_cache(maxsize=1)
def instructions() -> tuple[str, str]:
    """diffusers' instructions without and with an image; ``{}`` stands for the prompt."""
    from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock

    return stock._T2VA_EXPANSION_INSTRUCTION, stock._I2VA_EXPANSION_INSTRUCTION


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random state, of the CPU and of every CUDA device, and put it back afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _content(prompt: str, image: Image.Image | None) -> list[dict[str, Any]]:
    without, grounded = instructions()
    text = (without if image is None else grounded).format(prompt)
    return [*([] if image is None else [{"type": "image", "image": image}]), {"type": "text", "text": text}]


class _Watch:
    """A stopping criterion that never stops: it lets ``check_cancel`` raise."""

    def __init__(self, check_cancel: Callable[[], None]) -> None:
        self._check_cancel = check_cancel

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self._check_cancel()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
