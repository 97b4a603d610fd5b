"""The demo's two tokenizers: byte-level pairs learnt from the world's own captions, no one else's vocabulary.

The pipeline cuts the first 129 tokens of its prompt template away, so the pairs are learnt until the template takes
exactly that many, while every word of the captions is one token.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock
from tokenizers import Regex, pre_tokenizers
from transformers import CLIPTokenizer, Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from yellowsound.demo.world import vocabulary

TEMPLATE_TOKENS = 129
NEGATIVE = stock.Kandinsky6TI2VAPipeline._DEFAULT_NEGATIVE_PROMPT
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template_prefix() -> str:
    """What the pipeline puts before a prompt."""
    return str(stock._PROMPT_TEMPLATE).split("{}")[0]


def qwen_tokenizer() -> Qwen2Tokenizer:
    """The text encoder's tokenizer: right padding, the template prefix is TEMPLATE_TOKENS long.

    Raises ValueError where no number of pairs gives that length.
    """
    vocab, merges = _learn(suffix="")
    for count in range(len(merges), 0, -1):
        kept = merges[:count]
        tokenizer = _qwen(vocab, kept)
        if len(tokenizer(template_prefix())["input_ids"]) == TEMPLATE_TOKENS:
            return tokenizer
    raise ValueError(f"no number of pairs makes the template {TEMPLATE_TOKENS} tokens long")


def save_qwen(folder: Path) -> dict[str, int]:
    """Write tokenizer and (torchvision-free, hand-written) processor files; returns the ids of the special tokens."""
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    for name, extra in (("preprocessor_config", _IMAGE), ("video_preprocessor_config", _VIDEO)):
        (folder / f"{name}.json").write_text(json.dumps({**_PIXELS, **extra}, indent=2) + "\n")
    return {token: int(tokenizer.convert_tokens_to_ids(token)) for token in SPECIALS} | {"size": len(tokenizer)}


def save_clip(folder: Path) -> dict[str, int]:
    """Write the second tokenizer; returns its special ids and size."""
    vocab, merges = _learn(suffix="</w>")
    vocab = {**vocab, "<|startoftext|>": len(vocab), "<|endoftext|>": len(vocab) + 1}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[tuple(m) for m in merges], model_max_length=77)
    tokenizer.save_pretrained(folder)
    names = ("<|startoftext|>", "<|endoftext|>")
    return {token: int(tokenizer.convert_tokens_to_ids(token)) for token in names} | {"size": len(tokenizer)}


def _qwen(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Qwen2Tokenizer:
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in merges]
    known = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    return Qwen2Tokenizer(
        vocab=known,
        merges=list(merges),
        pad_token=SPECIALS[0],
        eos_token=SPECIALS[2],
        unk_token=None,
        padding_side="right",
        model_max_length=131072,
        extra_special_tokens=list(SPECIALS),
    )


def _learn(suffix: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte pairs from the captions' words (often) and the pipeline's own texts (once each), ties by alphabet."""
    split = PRETOKENIZE_REGEX if not suffix else r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    behaviour = "isolated" if not suffix else "removed"
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior=behaviour, invert=bool(suffix)),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[tuple[str, ...]] = Counter()
    for text, weight in [(f"{word} {word}", 50) for word in vocabulary()] + [(template_prefix(), 1), (NEGATIVE, 1)]:
        for piece, _ in pieces.pre_tokenize_str(text):
            counts[(*piece[:-1], piece[-1] + suffix)] += weight
    merges = _pairs(counts)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = alphabet + ([c + suffix for c in alphabet] if suffix else [])
    return {piece: i for i, piece in enumerate(dict.fromkeys(letters + [a + b for a, b in merges]))}, merges


def _pairs(counts: Counter[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Byte-pair merges until every word is one piece; the commonest pair first, then the first by alphabet."""
    words, merges = dict(counts), list[tuple[str, str]]()
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = {_merged(word, best): count for word, count in words.items()}


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    result: list[str] = []
    for letter in word:
        if result and (result[-1], letter) == pair:
            result[-1] += letter
        else:
            result.append(letter)
    return tuple(result)


_PIXELS = {
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "merge_size": 2, "patch_size": 14,
    "processor_class": "Qwen2_5_VLProcessor", "resample": 3, "rescale_factor": 1 / 255,
    "size": {"longest_edge": 50176, "shortest_edge": 3136}, "temporal_patch_size": 2,
}  # fmt: skip
_IMAGE = {"image_processor_type": "Qwen2VLImageProcessor"}
_VIDEO = {"video_processor_type": "Qwen2VLVideoProcessor", "min_frames": 4, "max_frames": 768}
