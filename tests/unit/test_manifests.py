"""Published checkpoints without files: exact transformers, and sums that match what is published."""

from __future__ import annotations

import pytest

from yellowsound.weights.catalog import CATALOG, find
from yellowsound.weights.manifests import components_for, is_published

NAMES = [entry.name for entry in CATALOG if entry.task == "generate"]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_published_but_for_headers_and_small_parts(name: str) -> None:
    entry = find(name)
    assert entry is not None and entry.size_bytes is not None and is_published(name)
    parts = components_for(name)
    assert sum(part.size_bytes for part in parts.values()) == pytest.approx(entry.size_bytes, rel=0.02)
    if entry.transformer_file_bytes is not None:
        header = entry.transformer_file_bytes - parts["transformer"].size_bytes
        assert 0 < header < 1_000_000


def test_blocks_and_variants() -> None:
    pro, distilled = (components_for(name)["transformer"] for name in ("pro", "pro-distill"))
    assert len(pro.tensors) == len(distilled.tensors) == 4471
    assert distilled.config["out_visual_dim"] == 10 * pro.config["out_visual_dim"]
    modulation = "visual_transformer_blocks.0.va_modulation.out_layer.weight"
    assert (pro.tensors[modulation].dtype, distilled.tensors[modulation].dtype) == ("F32", "BF16")


@pytest.mark.parametrize("name", ["demo", "vsr", "nothing"])
def test_other_names_are_refused(name: str) -> None:
    assert not is_published(name)
    with pytest.raises(KeyError, match="pro-distill"):
        components_for(name)
