"""Checkpoint.open: what is read from good folders, and the one line that a bad one gives."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yellowsound.checkpoint import Checkpoint, CheckpointError
from yellowsound.request import Defaults

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def damaged(tiny_sft: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(tiny_sft, tmp_path / "copy")


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert "found" in line and "expected" in line and line.count(";") >= 2
    return line


def rewrite_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + size :])


def edit_json(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def shard(folder: Path, count: int = 3) -> Path:
    """Cut the transformer's file into shards with an index, as publishers of large models do."""
    file = folder / WEIGHTS
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    names = sorted(header)
    weight_map = {}
    for number in range(count):
        chosen, body, entries = names[number::count], b"", {}
        for name in chosen:
            begin, end = header[name]["data_offsets"]
            part = data[8 + size + begin : 8 + size + end]
            entries[name] = {**header[name], "data_offsets": [len(body), len(body) + len(part)]}
            body += part
        shard_name = f"diffusion_pytorch_model-{number + 1:05d}-of-{count:05d}.safetensors"
        raw = json.dumps(entries).encode()
        (file.parent / shard_name).write_bytes(struct.pack("<Q", len(raw)) + raw + body)
        weight_map |= dict.fromkeys(chosen, shard_name)
    file.unlink()
    total = sum(e["data_offsets"][1] - e["data_offsets"][0] for e in header.values())
    index = file.with_name(f"{file.name}.index.json")
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return index


def test_flow_checkpoint(tiny_sft: Path) -> None:
    checkpoint = Checkpoint.open(tiny_sft)
    assert checkpoint.variant == "flow" and checkpoint.name == "tiny-k6-sft" and checkpoint.has_audio
    assert checkpoint.defaults == Defaults("flow", 50, 5.0, 864, 480, 121, 24.0)
    transformer = checkpoint.components["transformer"]
    assert len(transformer.tensors) == 383 and transformer.class_name == "Kandinsky6Transformer3DModel"
    for entry in transformer.tensors.values():
        assert entry.offset_bytes + entry.size_bytes <= entry.file.stat().st_size


def test_distilled_checkpoint(tiny_distill: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_distill))
    assert (checkpoint.variant, checkpoint.defaults.num_inference_steps) == ("piflow", 10)
    assert checkpoint.defaults.guidance_scale == 1.0


def test_opening_needs_no_torch(tiny_sft: Path) -> None:
    code = (
        "import sys; from yellowsound.checkpoint import Checkpoint; Checkpoint.open(sys.argv[1]);"
        "assert not {'torch', 'diffusers', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tiny_sft)], check=True)


def test_entries_point_at_the_bytes(tiny_sft: Path) -> None:
    from safetensors import safe_open

    entries = Checkpoint.open(tiny_sft).components["vae"].tensors
    with safe_open(tiny_sft / "vae/diffusion_pytorch_model.safetensors", "np") as stored:
        name = "decoder.conv_out.conv.bias"
        entry = entries[name]
        assert tuple(stored.get_slice(name).get_shape()) == entry.shape
        raw = entry.file.read_bytes()[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        if entry.dtype == "F32":
            assert stored.get_tensor(name).tobytes() == raw
    assert len(entries) == 184


def test_odd_and_read_only_path(tiny_sft: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "k6 модель 模型" / "v 1")
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert Checkpoint.open(folder).name == "v 1"
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_own_defaults(damaged: Path) -> None:
    own = {"name": "small", "width": 96, "height": 64, "num_frames": 9, "steps": 4, "guidance": 2.0}
    (damaged / "yellowsound.json").write_text(json.dumps(own))
    checkpoint = Checkpoint.open(damaged)
    assert checkpoint.name == "small"
    assert checkpoint.defaults == Defaults("flow", 4, 2.0, 96, 64, 9, 24.0)


@pytest.mark.parametrize(("own", "word"), [({"width": 97}, "width"), ({"wdith": 96}, "wdith"), ({"steps": 0}, "steps")])
def test_wrong_own_defaults(damaged: Path, own: dict[str, object], word: str) -> None:
    (damaged / "yellowsound.json").write_text(json.dumps(own))
    line = refusal(damaged)
    assert "yellowsound.json" in line and ("size" in line or word in line)


def test_own_guidance_must_fit_the_variant(tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_distill, tmp_path / "copy")
    (folder / "yellowsound.json").write_text('{"guidance_scale": 5.0}')
    assert "guidance_scale" in refusal(folder)


@pytest.mark.parametrize("extra", [-1000, 1000])
def test_wrong_length(damaged: Path, extra: int) -> None:
    file = damaged / WEIGHTS
    data = file.read_bytes()
    file.write_bytes(data[:extra] if extra < 0 else data + bytes(extra))
    line = refusal(damaged)
    assert str(file) in line and str(len(data)) in line and str(len(data) + extra) in line
    assert "download this file again" in line


def test_empty_file(damaged: Path) -> None:
    (damaged / WEIGHTS).write_bytes(b"")
    assert f"{damaged / WEIGHTS}: found 0 bytes" in refusal(damaged)


def test_header_only_half_there(damaged: Path) -> None:
    (damaged / WEIGHTS).write_bytes((damaged / WEIGHTS).read_bytes()[:100])
    assert "found 100 bytes" in refusal(damaged)


@pytest.mark.parametrize("name", [WEIGHTS, "model_index.json", "vae/config.json", "tokenizer/tokenizer.json"])
def test_lfs_pointer(damaged: Path, name: str) -> None:
    (damaged / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    line = refusal(damaged)
    assert "git-lfs pointer" in line and "git lfs pull" in line and name in line


def test_missing_weights(damaged: Path) -> None:
    (damaged / WEIGHTS).unlink()
    assert f"{damaged / WEIGHTS}: found nothing" in refusal(damaged)


def test_broken_link(damaged: Path) -> None:
    (damaged / WEIGHTS).unlink()
    (damaged / WEIGHTS).symlink_to("../../blobs/gone")
    assert "unfinished download" in refusal(damaged)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(damaged: Path) -> None:
    (damaged / WEIGHTS).chmod(0)
    assert "Permission denied" in refusal(damaged)


def test_garbage_header(damaged: Path) -> None:
    data = bytearray((damaged / WEIGHTS).read_bytes())
    data[8:20] = b"\xff" * 12
    (damaged / WEIGHTS).write_bytes(data)
    assert "no JSON" in refusal(damaged)


def test_absurd_header_length(damaged: Path) -> None:
    (damaged / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 60) + bytes(100))
    assert "a header of 1152921504606846976 bytes" in refusal(damaged)


def _overlap(header: dict[str, Any]) -> None:
    first, second = sorted((k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"][0])[:2]
    begin, _ = header[first]["data_offsets"]
    length = header[second]["data_offsets"][1] - header[second]["data_offsets"][0]
    header[second]["data_offsets"] = [begin, begin + length]


def _unknown_dtype(header: dict[str, Any]) -> None:
    header["out_layer.out_layer.bias"]["dtype"] = "F7"


def _quantised(header: dict[str, Any]) -> None:
    entry = header["out_layer.out_layer.bias"]
    entry["dtype"], entry["shape"] = "I8", [entry["data_offsets"][1] - entry["data_offsets"][0]]


def _wrong_shape(header: dict[str, Any]) -> None:
    header["out_layer.out_layer.bias"]["shape"] = [63]


def _no_offsets(header: dict[str, Any]) -> None:
    del header["out_layer.out_layer.bias"]["data_offsets"]


def _native_name(header: dict[str, Any]) -> None:
    header["audio_outLayer.out_layer.bias"] = header.pop("audio_out_layer.out_layer.bias")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_overlap, "overlapping tensor"),
        (_unknown_dtype, "dtype 'F7'"),
        (_quantised, "quantised"),
        (_wrong_shape, "of BF16 [63]"),
        (_no_offsets, "no dtype, shape and two offsets"),
        (_native_name, "native tensor name audio_outLayer"),
    ],
)
def test_damaged_header(damaged: Path, change: Callable[[dict[str, Any]], None], words: str) -> None:
    rewrite_header(damaged / WEIGHTS, change)
    line = refusal(damaged)
    assert words in line and WEIGHTS in line


def test_a_name_twice(damaged: Path) -> None:
    data = (damaged / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    raw = data[8 : 8 + size].replace(b'"out_layer.out_layer.bias"', b'"audio_out_layer.out_layer.bias"', 1)
    (damaged / WEIGHTS).write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + size :])
    assert "twice" in refusal(damaged)


def test_shards(damaged: Path) -> None:
    before = Checkpoint.open(damaged).components["transformer"]
    shard(damaged)
    after = Checkpoint.open(damaged).components["transformer"]
    assert after.tensors.keys() == before.tensors.keys() and after.size_bytes == before.size_bytes
    shards = {entry.file for entry in after.tensors.values()}
    assert len(shards) == 3 and {identity.file for identity in after.files} == shards


@pytest.mark.parametrize("extra", [-1000, 1000, None])
def test_damaged_shard(damaged: Path, extra: int | None) -> None:
    index = shard(damaged)
    file = index.with_name("diffusion_pytorch_model-00002-of-00003.safetensors")
    if extra is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:extra] if extra < 0 else file.read_bytes() + bytes(extra))
    assert f"{file}: found" in refusal(damaged)


def _drop_entry(document: dict[str, Any]) -> None:
    del document["weight_map"]["out_layer.out_layer.bias"]


def _foreign_entry(document: dict[str, Any]) -> None:
    document["weight_map"]["ghost.weight"] = "diffusion_pytorch_model-00001-of-00003.safetensors"


def _drop_shard(document: dict[str, Any]) -> None:
    document["weight_map"] = {k: v for k, v in document["weight_map"].items() if "-00002-" not in v}


def _escape(document: dict[str, Any]) -> None:
    document["weight_map"]["out_layer.out_layer.bias"] = "../vae/diffusion_pytorch_model.safetensors"


def _no_map(document: dict[str, Any]) -> None:
    document["weight_map"] = {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop_entry, "missing from the index"),
        (_foreign_entry, "no tensor ghost.weight"),
        (_drop_shard, "a shard the index does not name"),
        (_escape, "no usable weight_map"),
        (_no_map, "no usable weight_map"),
    ],
)
def test_damaged_index(damaged: Path, change: Callable[[dict[str, Any]], None], words: str) -> None:
    index = shard(damaged)
    document = json.loads(index.read_text())
    change(document)
    index.write_text(json.dumps(document))
    assert words in refusal(damaged)


def test_wrong_total_is_only_told(damaged: Path) -> None:
    from yellowsound.weights.describe import describe

    index = shard(damaged)
    assert describe(damaged).notes == ()
    document = json.loads(index.read_text())
    document["metadata"]["total_size"] += 2
    index.write_text(json.dumps(document))
    (note,) = describe(damaged).notes
    assert "total_size" in note and str(index) in note


def test_shards_without_index(damaged: Path) -> None:
    index = shard(damaged)
    index.unlink()
    assert f"{index}: found nothing, but 3 shards" in refusal(damaged)


def test_single_file_beside_shards(damaged: Path) -> None:
    data = (damaged / WEIGHTS).read_bytes()
    shard(damaged)
    (damaged / WEIGHTS).write_bytes(data)
    assert "both a single file and an index" in refusal(damaged)


def test_bin_weights_are_never_read(damaged: Path) -> None:
    (damaged / WEIGHTS).rename(damaged / "transformer/diffusion_pytorch_model.bin")
    assert "only .bin weights" in refusal(damaged)


def test_base_scheduler_in_a_distilled_checkpoint(tiny_sft: Path, tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_distill, tmp_path / "copy")
    shutil.copy(tiny_sft / "scheduler/scheduler_config.json", folder / "scheduler/scheduler_config.json")
    assert "scheduler_config.json" in refusal(folder)
    index = json.loads((folder / "model_index.json").read_text())
    edit_json(folder / "model_index.json", scheduler=["diffusers", "FlowMatchEulerDiscreteScheduler"])
    line = refusal(folder)
    assert "10 times" in line and "PiflowScheduler" in line
    assert index["scheduler"][1] == "PiflowScheduler"


def test_grid_of_another_size(tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_distill, tmp_path / "copy")
    edit_json(folder / "scheduler/scheduler_config.json", n_grid=8)
    assert "head of 160 channels (10 times 16); expected a head of 128" in refusal(folder)


def test_head_rows_against_config(tiny_sft: Path, tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "copy")
    shutil.copy(tiny_distill / WEIGHTS, folder / WEIGHTS)
    assert "with 640 rows; expected 64" in refusal(folder)


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("vae/config.json", {"latent_channels": 8}, "latent_channels=8; expected 16"),
        ("audio_vae/config.json", {"latent_channels": 20}, "latent_channels=20; expected 40"),
        ("vocoder/config.json", {"num_mels": 80}, "num_mels=80; expected 32"),
        ("transformer/config.json", {"in_text_dim": 3584}, "hidden_size=64; expected 3584"),
        ("transformer/config.json", {"in_text_dim2": 768}, "hidden_size=32; expected 768"),
        ("transformer/config.json", {"in_visual_dim": None}, "in_visual_dim=None"),
        ("vae/config.json", {"_class_name": "AutoencoderKL"}, "class AutoencoderKL"),
        ("text_encoder/config.json", {"architectures": ["Qwen2ForCausalLM"]}, "class Qwen2ForCausalLM"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderKLWan"]}, "AutoencoderKLWan"),
        ("model_index.json", {"_class_name": "WanPipeline"}, "pipeline WanPipeline"),
        ("model_index.json", {"_class_name": "Kandinsky6SRPipeline"}, "upscaler"),
        ("model_index.json", {"text_encoder": [None, None]}, "no text_encoder"),
    ],
)
def test_parts_that_do_not_belong_together(damaged: Path, file: str, values: dict[str, object], words: str) -> None:
    edit_json(damaged / file, **values)
    assert words in refusal(damaged)


@pytest.mark.parametrize("missing", ["transformer", "vae", "text_encoder", "tokenizer", "tokenizer_2", "scheduler"])
def test_missing_folder(damaged: Path, missing: str) -> None:
    shutil.rmtree(damaged / missing)
    assert f"{damaged / missing}: found no folder" in refusal(damaged)


def test_empty_tokenizer_folder(damaged: Path) -> None:
    (damaged / "tokenizer/tokenizer.json").unlink()
    assert "no vocabulary" in refusal(damaged)


def test_no_audio_parts_means_no_sound(damaged: Path) -> None:
    edit_json(damaged / "model_index.json", audio_vae=[None, None], vocoder=[None, None])
    for part in ("audio_vae", "vocoder"):
        shutil.rmtree(damaged / part)
    checkpoint = Checkpoint.open(damaged)
    assert not checkpoint.has_audio and checkpoint.absent == ("audio_vae", "vocoder")
    with pytest.raises(CheckpointError, match="no audio_vae, vocoder"):
        checkpoint.require("transformer", "audio_vae", "vocoder")


def test_parts_declared_absent(damaged: Path) -> None:
    edit_json(damaged / "model_index.json", text_encoder=[None, None])
    (damaged / "yellowsound.json").write_text('{"absent": ["text_encoder"]}')
    assert Checkpoint.open(damaged).absent == ("text_encoder",)
    (damaged / "yellowsound.json").write_text('{"absent": ["transformer"]}')
    assert "absent=" in refusal(damaged)


def test_not_a_folder(tmp_path: Path, tiny_sft: Path, damaged: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nowhere")
    assert "single file (Diffusers names)" in refusal(tiny_sft / WEIGHTS)
    assert "folder of checkpoints" in refusal(damaged.parent)
    (damaged / "model_index.json").unlink()
    assert f"{damaged / 'model_index.json'}: found nothing" in refusal(damaged)
    (tmp_path / "empty").mkdir()
    assert "found nothing" in refusal(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("visual_blocks.0.videoT.self_attention.to_query.weight", "native names"),
        ("model.diffusion_model.patch.weight", "ComfyUI names"),
        ("something.else", "unknown names"),
    ],
)
def test_community_single_files(tmp_path: Path, name: str, words: str) -> None:
    raw = json.dumps({name: {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    file = tmp_path / "kandinsky6_pro.safetensors"
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4))
    for place in (file, tmp_path):
        line = refusal(place)
        assert words in line and "Diffusers layout" in line and "kandinsky6_pro.safetensors" in line


def test_names_from_a_hub_cache(tiny_sft: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--kandinskylab--Kandinsky-6.0-Pro-5s-Diffusers"
    folder = shutil.copytree(tiny_sft, repository / "snapshots" / commit)
    checkpoint = Checkpoint.open(folder)
    assert (checkpoint.name, checkpoint.revision) == ("Kandinsky-6.0-Pro-5s-Diffusers", commit)
    assert "one snapshot of it" in refusal(repository)


@pytest.mark.parametrize("key", ["model_dim", "ff_dim", "num_visual_blocks", "num_text_blocks", "axes_dims"])
@pytest.mark.parametrize("value", [None, 0, "4", [0]])
def test_sizes_that_planning_goes_by(damaged: Path, key: str, value: object) -> None:
    file = damaged / "transformer" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, key: value}))
    with pytest.raises(CheckpointError, match=rf"config\.json.*{key}=.*positive whole number"):
        Checkpoint.open(damaged)
