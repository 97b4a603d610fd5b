"""Kept prompts: the same bits come back, and nothing of another encoder, device or template."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

from yellowsound.stages import text_store
from yellowsound.stages.text import TextEmbeds
from yellowsound.stages.text_store import TextStore

CPU = torch.device("cpu")


def embeds(seed: int, masked: bool = True) -> TextEmbeds:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(6)[None] < 4 if masked else None
    return TextEmbeds(torch.randn((1, 6, 8), generator=generator), torch.randn((1, 4), generator=generator), mask)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_come_back_in_another_process(tmp_path: Path, masked: bool, dtype: torch.dtype) -> None:
    text = embeds(1, masked).to(CPU, dtype)
    TextStore("qwen", CPU, dtype, tmp_path).put("a cat", text)
    found = TextStore("qwen", CPU, dtype, tmp_path).get("a cat")
    assert found is not None
    assert torch.equal(found.tokens, text.tokens) and torch.equal(found.pooled, text.pooled)
    assert (found.mask is None) == (not masked)


def test_the_key_holds_all_it_depends_on(tmp_path: Path) -> None:
    TextStore("qwen", CPU, torch.float32, tmp_path).put("a cat", embeds(1))
    assert TextStore("other", CPU, torch.float32, tmp_path).get("a cat") is None
    assert TextStore("qwen", CPU, torch.bfloat16, tmp_path).get("a cat") is None
    assert TextStore("qwen", CPU, torch.float32, tmp_path).get("a cat ") is None


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    TextStore("qwen", CPU, torch.float32, tmp_path).put("a cat", embeds(1))
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    assert TextStore("qwen", CPU, torch.float32, tmp_path).get("a cat") is None


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": torch.zeros(1, 3, 5), "pooled": torch.zeros(2)},
        {"tokens": torch.zeros(1, 6, 8)},
        {"pooled": torch.zeros(1, 4, dtype=torch.float16)},
        {"mask": torch.ones(1, 6, dtype=torch.bool)},
        {"tokens": torch.full((1, 6, 8), torch.nan)},
        {"more": torch.zeros(1)},
        {"sha256": torch.zeros(())},
    ],
    ids=["shapes", "values", "dtype", "mask", "not a number", "name", "hash"],
)
def test_tensors_that_were_not_kept_are_encoded_anew(tmp_path: Path, damage: dict[str, torch.Tensor]) -> None:
    TextStore("qwen", CPU, torch.float32, tmp_path).put("a cat", embeds(1))
    [file] = tmp_path.iterdir()
    save_file({**load(file.read_bytes()), **damage}, file)
    store = TextStore("qwen", CPU, torch.float32, tmp_path)
    assert store.get("a cat") is None
    store.put("a cat", embeds(1))
    found = TextStore("qwen", CPU, torch.float32, tmp_path).get("a cat")
    assert found is not None and torch.equal(found.tokens, embeds(1).tokens)


def test_tensors_without_a_hash_count_as_none(tmp_path: Path) -> None:
    TextStore("qwen", CPU, torch.float32, tmp_path).put("a cat", embeds(1))
    [file] = tmp_path.iterdir()
    save_file({"tokens": torch.zeros(1, 3, 5), "pooled": torch.zeros(2)}, file)
    assert TextStore("qwen", CPU, torch.float32, tmp_path).get("a cat") is None


def test_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_store, "KEPT_PROMPTS", 3)
    store = TextStore("qwen", CPU, torch.float32, tmp_path)
    for number in range(5):
        store.put(str(number), embeds(number))
    assert len(list(tmp_path.iterdir())) == 3 and store.get("4") is not None
    for number in range(2, 5):
        store.get(str(number))
    assert len(store._memory) <= 3


def test_without_a_folder_it_keeps_for_this_process() -> None:
    store = TextStore("qwen", CPU, torch.float32, None)
    store.put("a cat", embeds(1))
    assert store.get("a cat") is not None
