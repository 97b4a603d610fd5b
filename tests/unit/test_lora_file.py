"""LoRA files that cannot be merged are refused in one line that names the file, what was found and what is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, full, ones, tensor, zeros

from yellowsound.memory.lora import Lora, LoraError, read_lora

PAIR = {"a.lora_A.weight": ones(2, 3), "a.lora_B.weight": ones(5, 2)}


def refusal(path: Path, tensors: dict[str, Tensor], metadata: str | None = None) -> str:
    file = path / "odd.safetensors"
    save_file(tensors, file, metadata=None if metadata is None else {"lora_adapter_metadata": metadata})
    with pytest.raises(LoraError) as caught:
        read_lora(Lora(file))
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message.removeprefix(f"{file}: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a.weight": zeros(1)}, "tensor a.weight is no LoRA pair, expected pairs named NAME.lora_A.weight"),
        ({"b.lora_A.weight": ones(1, 1)}, "b has down only; lora_A and lora_B are needed"),
        ({"a.lora_down.weight": ones(2, 3)}, "stand for the same, expected one of them"),
        ({"a.lora_A.weight": ones(2, 3, dtype=torch.int8)}, "a.lora_A.weight is int8, expected a floating dtype"),
        ({"a.lora_B.weight": ones(5, 2, dtype=torch.bool)}, "a.lora_B.weight is bool, expected a floating dtype"),
        ({"a.lora_A.weight": ones(2, 3, dtype=torch.complex64)}, "is complex64, expected a floating dtype"),
        ({"a.lora_A.weight": zeros(0, 3)}, "a.lora_A.weight has rank 0, expected at least 1"),
        ({"a.lora_A.weight": ones(3)}, "a.lora_A.weight has the shape [3], expected two dimensions (rank, inputs)"),
        ({"a.lora_A.weight": tensor(1.0)}, "a.lora_A.weight has the shape [], expected two dimensions"),
        ({"a.lora_B.weight": ones(5)}, "a.lora_B.weight has the shape [5], expected two dimensions (outputs, rank)"),
        ({"a.lora_A.weight": ones(2, 3, 1, 1)}, "has the shape [2, 3, 1, 1], expected two dimensions"),
        ({"a.lora_B.weight": ones(5, 4)}, "a.lora_B.weight has rank 4, expected 2, as a.lora_A.weight has"),
        ({"a.lora_A.weight": full((2, 3), torch.nan)}, "a.lora_A.weight holds NaN or infinite numbers"),
        ({"a.lora_B.weight": full((5, 2), torch.inf, dtype=torch.bfloat16)}, "a.lora_B.weight holds NaN or infinite"),
        ({"a.lora_A.weight": full((2, 3), 1e300, dtype=torch.float64)}, "a.lora_A.weight holds NaN or infinite"),
        ({"a.alpha": ones(3)}, "a.alpha is float32 of shape [3], expected a single number"),
        ({"a.alpha": zeros(0)}, "a.alpha is float32 of shape [0], expected a single number"),
        ({"a.alpha": tensor(True)}, "a.alpha is bool of shape [], expected a single number"),
        ({"a.alpha": tensor(1j)}, "a.alpha is complex64 of shape [], expected a single number"),
        ({"a.alpha": tensor(torch.nan)}, "a.alpha is nan, expected a finite number"),
        ({"a.alpha": tensor(torch.inf)}, "a.alpha is inf, expected a finite number"),
        ({"a.alpha": tensor(1e300, dtype=torch.float64)}, "a would be merged 5e+299 times, expected a float32 number"),
    ],
)
def test_tensors_that_are_no_lora(tmp_path: Path, changes: dict[str, Tensor], message: str) -> None:
    assert message in refusal(tmp_path, {**PAIR, **changes})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("{r: 4", "metadata lora_adapter_metadata is no JSON"),
        ("[" * 100_000, "metadata lora_adapter_metadata is no JSON"),
        ("[1, 2]", "metadata lora_adapter_metadata is [1, 2], expected a JSON object"),
        ("null", "metadata lora_adapter_metadata is None, expected a JSON object"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much', expected a finite number"),
        ({"lora_alpha": True}, "lora_alpha is True, expected a finite number"),
        ({"lora_alpha": None}, "lora_alpha is None, expected a finite number"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ('{"lora_alpha": NaN}', "lora_alpha is nan, expected a finite number"),
        ('{"lora_alpha": 1e999}', "lora_alpha is inf, expected a finite number"),
        ({"alpha_pattern": {"a": "two"}}, "alpha_pattern of 'a' is 'two', expected a finite number"),
        ({"alpha_pattern": {"other": [2]}}, "alpha_pattern of 'other' is [2], expected a finite number"),
        ({"alpha_pattern": ["a"]}, "alpha_pattern is ['a'], expected a JSON object of names and numbers"),
        ({"alpha_pattern": {"to_(key": 2}}, "alpha_pattern has the key 'to_(key', expected a name or pattern"),
        ({"rank_pattern": {"a": None}}, "rank_pattern of 'a' is None, expected a finite number"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes', expected true or false"),
        ({"r": "2"}, "r is '2', expected a finite number"),
        ({"r": 8}, "a.lora_A.weight has rank 2, expected 8, as the file's metadata say"),
        ({"r": 2, "rank_pattern": {"a": 3}}, "a.lora_A.weight has rank 2, expected 3, as the file's metadata say"),
        ({"use_dora": True}, "use_dora is True, expected a plain LoRA"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', expected a plain LoRA"),
    ],
)
def test_metadata_that_say_nothing_usable(tmp_path: Path, metadata: Any, message: str) -> None:
    assert message in refusal(tmp_path, PAIR, metadata if isinstance(metadata, str) else json.dumps(metadata))


def test_a_file_without_tensors(tmp_path: Path) -> None:
    assert "has no tensors, expected pairs named" in refusal(tmp_path, {})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    page = tmp_path / "page.safetensors"
    page.write_text("<html>")
    with pytest.raises(LoraError, match=r"page\.safetensors: is no safetensors file"):
        read_lora(Lora(page))
    with pytest.raises(LoraError, match=r"gone\.safetensors: cannot be read: .*[Nn]o such file"):
        read_lora(Lora(tmp_path / "gone.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_every_floating_dtype_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({name: value.to(dtype) for name, value in PAIR.items()}, tmp_path / "a.safetensors")
    delta = read_lora(Lora(tmp_path / "a.safetensors"))["a"]
    weight = zeros(5, 3)
    delta.add_to(weight)
    assert weight.equal(full((5, 3), 2.0))


def test_alpha_may_be_a_whole_number(tmp_path: Path) -> None:
    save_file({**PAIR, "a.alpha": tensor([4])}, tmp_path / "a.safetensors")
    assert read_lora(Lora(tmp_path / "a.safetensors"))["a"].scale == 2.0
