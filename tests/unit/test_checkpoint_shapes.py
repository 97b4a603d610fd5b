"""Stored names, shapes and loaded dtypes against the models' own classes (traps T8 and the float32 list)."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from yellowsound.checkpoint import Checkpoint, CheckpointError
from yellowsound.weights.dtypes import FLOAT32_PARTS, loaded_dtype, stays_float32
from yellowsound.weights.names import name_in_module
from yellowsound.weights.verify_shapes import check_against_models, expected_shapes

TORCH_NAMES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}
COMPONENTS = ("transformer", "vae", "audio_vae", "vocoder", "text_encoder", "text_encoder_2")


def rename(file: Path, old: str, new: str | None, shape: list[int] | None = None) -> None:
    """Rename, reshape or (``new`` None) take out one tensor of a file."""
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    body, entries = b"", {}
    for name, entry in header.items():
        if name == "__metadata__" or (name == old and new is None):
            continue
        begin, end = entry["data_offsets"]
        part = data[8 + size + begin : 8 + size + end]
        key = new if name == old and new is not None else name
        changed = {"shape": shape} if name == old and shape is not None else {}
        entries[key] = {**entry, **changed, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    raw = json.dumps(entries).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + body)


def load_stock(folder: Path, component: str, dtype: torch.dtype) -> torch.nn.Module:
    import diffusers
    import transformers

    name = Checkpoint.open(folder).components[component].class_name
    if component.startswith("text_encoder"):
        model: torch.nn.Module = getattr(transformers, name).from_pretrained(folder / component, dtype=dtype)
        return model
    model = getattr(diffusers, name).from_pretrained(folder / component, torch_dtype=dtype)
    return model


def test_tiny_checkpoints_are_whole(tiny_sft: Path, tiny_distill: Path) -> None:
    for folder in (tiny_sft, tiny_distill):
        check_against_models(Checkpoint.open(folder))


@pytest.mark.parametrize(
    ("part", "old", "new", "words"),
    [
        (
            "transformer",
            "out_layer.out_layer.bias",
            "out_layer.out_layer.bios",
            "found tensor out_layer.out_layer.bios",
        ),
        ("transformer", "audio_embeddings.norm.bias", None, "no tensor audio_embeddings.norm.bias"),
        ("vae", "decoder.conv_out.conv.bias", None, "no tensor decoder.conv_out.conv.bias"),
        ("text_encoder", "model.norm.weight", None, "no tensor model.language_model.norm.weight"),
        ("text_encoder", "lm_head.weight", None, "no tensor lm_head.weight"),
        ("vocoder", "conv_pre.bias", "conv_pro.bias", "conv_pro.bias"),
    ],
)
def test_wrong_names(tiny_sft: Path, tmp_path: Path, part: str, old: str, new: str | None, words: str) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "copy")
    rename(next((folder / part).glob("*.safetensors")), old, new)
    with pytest.raises(CheckpointError) as caught:
        check_against_models(Checkpoint.open(folder))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_shape_of_the_same_size(tiny_sft: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "copy")
    weights = folder / "transformer/diffusion_pytorch_model.safetensors"
    rename(weights, "audio_embeddings.in_layer.weight", "audio_embeddings.in_layer.weight", [40, 32])
    with pytest.raises(CheckpointError, match=r"of shape \[40, 32\]; expected \[32, 40\]"):
        check_against_models(Checkpoint.open(folder))


def test_fewer_blocks_than_the_config_says(tiny_sft: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "copy")
    config = json.loads((folder / "transformer/config.json").read_text())
    (folder / "transformer/config.json").write_text(json.dumps({**config, "num_visual_blocks": 5}))
    with pytest.raises(CheckpointError, match=r"visual_transformer_blocks\.4.*and 71 more"):
        check_against_models(Checkpoint.open(folder))


def test_config_that_the_class_rejects(tiny_sft: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "copy")
    config = json.loads((folder / "vae/config.json").read_text())
    (folder / "vae/config.json").write_text(json.dumps({**config, "block_out_channels": [7, 12, 16, 16]}))
    with pytest.raises(CheckpointError, match=r"vae/config\.json: found values AutoencoderKLHunyuanVideo rejects"):
        check_against_models(Checkpoint.open(folder))


def test_shapes_after_a_stock_load(tiny_sft: Path) -> None:
    """In a process whose first use of accelerate is diffusers' own, ``torch.device("meta")`` builds fail."""
    code = (
        "import sys, diffusers; from yellowsound.checkpoint import Checkpoint;"
        "from yellowsound.weights.verify_shapes import check_against_models;"
        "folder = sys.argv[1]; diffusers.MMAudioVAE.from_pretrained(folder + '/audio_vae');"
        "check_against_models(Checkpoint.open(folder))"
    )
    subprocess.run([sys.executable, "-c", code, str(tiny_sft)], check=True)


def test_building_leaves_no_memory(tiny_sft: Path) -> None:
    component = Checkpoint.open(tiny_sft).components["transformer"]
    assert len(expected_shapes(component)) == 383
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("wanted", ["BF16", "F32"])
def test_dtypes_are_stock_diffusers(tiny_distill: Path, component: str, wanted: str) -> None:
    """Every parameter and persistent buffer loads in the dtype, and under the name, that our tables say."""
    stock = load_stock(tiny_distill, component, TORCH_NAMES[wanted])
    ours = {}
    for entry in Checkpoint.open(tiny_distill).components[component].tensors.values():
        name = name_in_module(component, entry.name)
        if name is not None:
            ours[name] = TORCH_NAMES[loaded_dtype(component, name, entry.dtype, wanted)]
    assert ours == {name: tensor.dtype for name, tensor in stock.state_dict().items()}


@pytest.mark.parametrize("component", COMPONENTS)
def test_computed_buffers_are_never_rounded(tiny_distill: Path, component: str) -> None:
    stock = load_stock(tiny_distill, component, torch.bfloat16)
    kept = stock.state_dict().keys()
    tables = {name: buffer for name, buffer in stock.named_buffers() if name not in kept}
    assert len(tables) == {"transformer": 6, "text_encoder": 4, "text_encoder_2": 1}.get(component, 0)
    assert all(buffer.dtype in (torch.float32, torch.int64) for buffer in tables.values())


def test_float32_list_is_the_classes_own() -> None:
    import diffusers

    for name, parts in FLOAT32_PARTS.items():
        assert parts == set(getattr(diffusers, name)._keep_in_fp32_modules)
    for name in ("AutoencoderKLHunyuanVideo", "MMAudioVAE", "MMAudioVocoder"):
        assert not getattr(diffusers, name)._keep_in_fp32_modules


def test_float32_list_written_down(tiny_sft: Path) -> None:
    names = Checkpoint.open(tiny_sft).components["transformer"].tensors
    assert sorted(n for n in names if stays_float32("transformer", n)) == [
        "audio_out_layer.modulation.out_layer.bias",
        "audio_out_layer.modulation.out_layer.weight",
        "out_layer.modulation.out_layer.bias",
        "out_layer.modulation.out_layer.weight",
    ]
    assert sum("modulation" in n or "time_embeddings" in n for n in names) == 52


def test_names_of_older_files() -> None:
    assert name_in_module("text_encoder_2", "text_model.embeddings.position_ids") is None
    for more in ("text_projection.weight", "vision_model.encoder.x", "visual_projection.weight", "logit_scale"):
        assert name_in_module("text_encoder_2", more) is None
    assert name_in_module("text_encoder_2", "text_model.final_layer_norm.bias") == "final_layer_norm.bias"
    for stored, name in {
        "visual.blocks.0.norm1.weight": "model.visual.blocks.0.norm1.weight",
        "model.layers.3.mlp.up_proj.weight": "model.language_model.layers.3.mlp.up_proj.weight",
        "model.language_model.norm.weight": "model.language_model.norm.weight",
        "model.visual.merger.ln_q.weight": "model.visual.merger.ln_q.weight",
        "lm_head.weight": "lm_head.weight",
    }.items():
        assert name_in_module("text_encoder", stored) == name
    assert name_in_module("vae", "visual.x") == "visual.x"
