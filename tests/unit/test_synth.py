"""Synthetic checkpoints: sizes to the byte against published headers, seeded content, bounded memory."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yellowsound.checkpoint import Checkpoint
from yellowsound.weights import synth
from yellowsound.weights.blueprint import Blueprint, blueprint, transformer_part
from yellowsound.weights.catalog import CATALOG, find
from yellowsound.weights.file_layout import lay_out
from yellowsound.weights.shapes import Size, Variant, transformer_config, transformer_tensors

MANIFESTS = Path(__file__).parents[1] / "golden" / "manifests"
PUBLISHED: list[tuple[str, Size, Variant, int, int | None]] = [
    ("pro", "pro", "flow", 30_136_326_248, None),
    ("pro-distill", "pro", "piflow", 30_139_423_760, 60_344_993_576),
    ("lite", "lite", "flow", 3_176_632_424, 7_476_528_464),
    ("lite-distill", "lite", "piflow", 3_177_988_112, 6_381_599_096),
]
SMALL = {
    "model_dim": 128, "ff_dim": 256, "time_dim": 64, "num_text_blocks": 1, "num_visual_blocks": 2,
    "model_dim_a": 64, "time_dim_a": 32, "ff_dim_a": 128, "axes_dims": [8, 12, 12], "axes_dims_a": [8, 12, 12],
    "in_text_dim": 64, "in_text_dim2": 32,
}  # fmt: skip


def read_manifest(name: str) -> Any:
    return json.loads(gzip.decompress((MANIFESTS / f"{name}.json.gz").read_bytes()))


def small(variant: Variant = "piflow") -> Blueprint:
    config = {**transformer_config("lite", variant), **SMALL}
    return Blueprint("small", variant, (transformer_part(config, variant),))


def write(plan: Blueprint, out: Path, **changes: Any) -> Path:
    synth.synthesize(plan, out, pool_values=1 << 16, **changes)
    return out / "transformer" / "diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize(("name", "size", "variant", "parameters", "file_bytes"), PUBLISHED)
def test_published_headers(name: str, size: Size, variant: Variant, parameters: int, file_bytes: int | None) -> None:
    manifest = read_manifest(name)
    config = transformer_config(size, variant)
    assert config == manifest["config"]
    tensors = transformer_tensors(config, variant)
    assert {k: [dtype, list(shape)] for k, (dtype, shape) in tensors.items()} == manifest["tensors"]
    assert sum(math.prod(shape) for _, shape in tensors.values()) == parameters
    if file_bytes is not None:
        assert lay_out(tensors).size_bytes == file_bytes
        entry = find(name)
        assert entry is not None and entry.transformer_file_bytes == file_bytes


def test_layout_is_the_safetensors_packages_own() -> None:
    from safetensors.numpy import save

    arrays = {
        "b": np.zeros((3, 5), np.float32), "a": np.ones(7, np.float16), "c": np.zeros((), np.int64),
        "d": np.zeros((2, 2), np.float32), "ё": np.zeros(3, np.uint8),
    }  # fmt: skip
    kinds = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8"}
    layout = lay_out({name: (kinds[str(a.dtype)], a.shape) for name, a in arrays.items()})
    theirs = save(arrays)
    assert theirs[: len(layout.head)] == layout.head and len(theirs) == layout.size_bytes


def test_other_parts_match_their_manifest() -> None:
    entry = find("lite-distill")
    assert entry is not None
    plan = blueprint(entry, ["transformer", "vae", "audio"])
    expected = read_manifest("class-defaults")
    parts = {part.name: part for part in plan.parts}
    assert list(parts) == ["transformer", "vae", "audio_vae", "vocoder"]
    for name in ("vae", "audio_vae", "vocoder"):
        assert {k: list(shape) for k, (_, shape) in parts[name].tensors.items()} == expected[name]
        assert {dtype for dtype, _ in parts[name].tensors.values()} == {"F32"}
    assert parts["audio_vae"].config["scaling_factor"] == 0.417
    assert plan.absent == ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    assert plan.model_index()["text_encoder"] == [None, None]


@pytest.mark.parametrize("entry", [e for e in CATALOG if e.task == "generate"], ids=lambda e: e.name)
def test_every_published_name(entry: Any) -> None:
    plan = blueprint(entry, ["transformer"], blocks=3)
    assert plan.parts[0].config["num_visual_blocks"] == 3
    assert plan.variant == ("piflow" if entry.steps == 10 else "flow")
    assert plan.name == f"synthetic-{entry.name}"


@pytest.mark.parametrize(
    ("name", "parts", "blocks", "words"),
    [
        ("vsr", ["transformer"], None, "only generation checkpoints"),
        ("lite", ["vae"], None, "transformer must be among them"),
        ("lite", ["transformer", "vea"], None, "unknown vea; known: transformer, vae, audio, text"),
        ("lite", ["transformer"], 33, "from 1 to 32"),
        ("lite", ["transformer"], 0, "from 1 to 32"),
    ],
)
def test_wrong_wishes(name: str, parts: list[str], blocks: int | None, words: str) -> None:
    entry = find(name)
    assert entry is not None
    with pytest.raises(ValueError, match=words):
        blueprint(entry, parts, blocks)


@pytest.mark.parametrize("variant", ["flow", "piflow"])
def test_the_folder_opens(tmp_path: Path, variant: Variant) -> None:
    plan = small(variant)
    file = write(plan, tmp_path / "out")
    assert file.stat().st_size == lay_out(plan.parts[0].tensors).size_bytes
    checkpoint = Checkpoint.open(tmp_path / "out")
    assert (checkpoint.name, checkpoint.variant, checkpoint.has_audio) == ("small", variant, False)
    assert "vae" in checkpoint.absent and set(checkpoint.components) == {"transformer", "scheduler"}
    stored = {t.name: (t.dtype, t.shape) for t in checkpoint.components["transformer"].tensors.values()}
    assert stored == plan.parts[0].tensors
    from yellowsound.weights.verify_shapes import check_against_models

    check_against_models(checkpoint)


def test_values(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    values = load_file(write(small(), tmp_path / "out", seed=3))
    block = "visual_transformer_blocks.1.video_dec_block"
    weight = values[f"{block}.feed_forward.net.0.proj.weight"].float()
    assert weight.std().item() == pytest.approx(0.02, rel=0.03) and abs(weight.mean().item()) < 1e-3
    assert values[f"{block}.visual_modulation.out_layer.weight"].float().std().item() == pytest.approx(0.002, rel=0.05)
    assert values[f"{block}.self_attention.query_norm.weight"].eq(1).all()
    assert values[f"{block}.self_attention.to_query.bias"].eq(0).all()
    assert values["video_text_embeddings.in_layer.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    other = values["visual_transformer_blocks.0.video_dec_block.feed_forward.net.0.proj.weight"].float()
    assert not weight.equal(other)


def test_seed_decides_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(small(), tmp_path / "a", seed=1).read_bytes()
    monkeypatch.setattr(synth, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(synth, "WRITERS", 1)
    assert write(small(), tmp_path / "b", seed=1).read_bytes() == first
    assert write(small(), tmp_path / "c", seed=2).read_bytes() != first


def test_buffered_where_direct_writing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(small(), tmp_path / "a").read_bytes()
    real = os.open

    def refusing(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    assert write(small(), tmp_path / "b").read_bytes() == first


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    total = synth.synthesize(
        small(), tmp_path / "out", pool_values=1 << 16, on_bytes=lambda done, all_: told.append((done, all_))
    )
    assert told[-1] == (total, total)


def test_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="exists"):
        write(small(), tmp_path / "out")


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        write(small(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_room_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1000))
    with pytest.raises(OSError, match="are free"):
        write(small(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_bfloat16_rounds_to_nearest_even() -> None:
    import torch

    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    ours = torch.from_numpy(synth.encode(values, "BF16").view(np.int16)).view(torch.bfloat16)
    assert ours.equal(torch.from_numpy(values).to(torch.bfloat16))


def test_text_parts_have_the_published_shapes() -> None:
    from yellowsound.checkpoint import Component, TensorEntry
    from yellowsound.weights.verify_shapes import check_component

    entry = find("lite-distill")
    assert entry is not None
    plan = blueprint(entry, ["transformer", "text"], blocks=1)
    parts = {part.name: part for part in plan.parts}
    qwen, clip = parts["text_encoder"], parts["text_encoder_2"]
    assert lay_out(qwen.tensors).size_bytes - len(lay_out(qwen.tensors).head) == 16_584_333_312
    assert lay_out(clip.tensors).size_bytes - len(lay_out(clip.tensors).head) == 2 * 123_060_480
    assert "model.layers.27.mlp.down_proj.weight" in qwen.tensors and "visual.merger.ln_q.weight" in qwen.tensors
    for part, name in ((qwen, "Qwen2_5_VLForConditionalGeneration"), (clip, "CLIPTextModel")):
        tensors = {key: TensorEntry(key, dtype, shape, Path("x"), 0, 0) for key, (dtype, shape) in part.tensors.items()}
        check_component(Component(part.name, Path("x"), name, part.config, tensors))
    assert set(plan.tokenizers) == {"tokenizer", "tokenizer_2"} and "tokenizer" not in plan.absent
    for folder in plan.tokenizers.values():
        assert (folder / "tokenizer.json").is_file()
    toy = json.loads((plan.tokenizers["tokenizer"].parent / "text_encoder/config.json").read_text())
    assert qwen.config["image_token_id"] == toy["image_token_id"]
