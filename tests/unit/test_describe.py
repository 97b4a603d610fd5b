"""describe, check and the weights commands, from headers alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from yellowsound.checkpoint import Checkpoint
from yellowsound.cli import main
from yellowsound.weights.blueprint import Blueprint, transformer_part
from yellowsound.weights.catalog import find
from yellowsound.weights.describe import describe, describe_published, differences, published_like
from yellowsound.weights.file_layout import lay_out
from yellowsound.weights.shapes import Size, Variant, transformer_config
from yellowsound.weights.synth import synthesize


def hollow(folder: Path, size: Size, variant: Variant) -> Checkpoint:
    """A folder with a published transformer's header and holes in place of its weights: no disk is used."""
    part = transformer_part(transformer_config(size, variant), variant)
    small = Blueprint("published", variant, (transformer_part({**part.config, **TINY}, variant),))
    synthesize(small, folder, pool_values=1 << 16)
    layout = lay_out(part.tensors)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(layout.head)
    os.truncate(file, layout.size_bytes)
    (folder / "transformer" / "config.json").write_text(json.dumps(part.config))
    return Checkpoint.open(folder)


TINY = {
    "model_dim": 32, "ff_dim": 32, "time_dim": 8, "num_text_blocks": 1, "num_visual_blocks": 1, "model_dim_a": 32,
    "time_dim_a": 8, "ff_dim_a": 32, "axes_dims": [8, 12, 12], "axes_dims_a": [8, 12, 12],
}  # fmt: skip


def test_tiny(tiny_distill: Path) -> None:
    found = describe(tiny_distill)
    assert (found.name, found.task, found.variant) == ("tiny-k6-distill", "generate", "piflow")
    assert (found.steps, found.guidance, found.audio_latent_scale) == (10, 1.0, 0.417)
    parts = {part.name: part for part in found.parts}
    assert sum(part.size_bytes for part in found.parts) == found.size_bytes == 6_330_190
    assert sum(parts["transformer"].bytes_by_dtype.values()) == parts["transformer"].size_bytes
    assert set(parts["transformer"].bytes_by_dtype) == {"F32", "BF16"}
    assert found.like == () and found.notes == ()


@pytest.mark.parametrize(
    ("size", "variant", "like", "parameters", "file_bytes"),
    [
        ("pro", "flow", ("pro", "pro-pretrain"), 30_136_326_248, None),
        ("pro", "piflow", ("pro-distill",), 30_139_423_760, 60_344_993_576),
        ("lite", "flow", ("lite", "lite-pretrain"), 3_176_632_424, 7_476_528_464),
        ("lite", "piflow", ("lite-distill",), 3_177_988_112, 6_381_599_096),
    ],
)
def test_published_headers_in_a_folder(
    tmp_path: Path, size: Size, variant: Variant, like: tuple[str, ...], parameters: int, file_bytes: int | None
) -> None:
    checkpoint = hollow(tmp_path / "out", size, variant)
    found = describe(tmp_path / "out")
    assert found.like == like == published_like(checkpoint.components["transformer"])
    assert found.parameters == parameters and found.notes == ()
    file = next(iter(checkpoint.components["transformer"].tensors.values())).file
    if file_bytes is not None:
        assert file.stat().st_size == file_bytes
    entry = find(like[0])
    assert entry is not None
    known = describe_published(entry)
    assert (known.parameters, known.size_bytes) == (found.parameters, found.size_bytes)
    assert known.parts[0].bytes_by_dtype == found.parts[0].bytes_by_dtype


def test_differences_are_told(tmp_path: Path) -> None:
    checkpoint = hollow(tmp_path / "out", "lite", "piflow")
    config = tmp_path / "out/transformer/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "ca_rope": False}))
    entry = find("lite-distill")
    assert entry is not None
    assert list(differences(Checkpoint.open(checkpoint.folder), entry)) == [
        "transformer/config.json: ca_rope is False, published True"
    ]
    part = transformer_part(transformer_config("lite", "piflow"), "piflow")
    file = tmp_path / "out/transformer/diffusion_pytorch_model.safetensors"
    layout = lay_out({name: ("F32", shape) for name, (_, shape) in part.tensors.items()})
    file.write_bytes(layout.head)
    os.truncate(file, layout.size_bytes)
    notes = list(differences(Checkpoint.open(checkpoint.folder), entry))
    assert any("stored in another dtype" in note for note in notes)
    assert any("published 6381599096" in note for note in notes)


def test_wrong_audio_scale_is_told(tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_distill, tmp_path / "copy")
    (folder / "yellowsound.json").write_text('{"name": "lite"}')
    assert any("0.417, published 0.5302" in note for note in describe(folder).notes)


def test_upscaler(tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_distill, tmp_path / "up")
    index = {"_class_name": "Kandinsky6SRPipeline", "scheduler": ["diffusers", "PiflowScheduler"]}
    index["vae"] = ["diffusers", "AutoencoderKLHunyuanVideo"]
    (folder / "model_index.json").write_text(json.dumps(index))
    found = describe(folder)
    assert (found.task, found.variant) == ("upscale", "piflow") and [part.name for part in found.parts] == ["vae"]


def test_no_torch_for_looking(tiny_sft: Path) -> None:
    code = (
        "import sys; from yellowsound.cli.weights import describe; describe(sys.argv[1], json=True);"
        "assert not {'torch', 'diffusers', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tiny_sft)], check=True, capture_output=True)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["weights", *arguments])
    assert caught.value.code in (0, None), capsys.readouterr().err
    return capsys.readouterr().out


def test_list_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    table = printed(capsys, "list")
    assert len([line for line in table.splitlines() if line.startswith(("pro", "lite", "vsr"))]) == 8
    assert "CC BY-NC" in table and "gated" in table
    rows: Any = json.loads(printed(capsys, "list", "--json"))
    assert rows[1]["size_bytes"] == 80_607_441_652 and rows[0]["here"] == "no"


def test_describe_command(capsys: pytest.CaptureFixture[str], tiny_sft: Path) -> None:
    table = printed(capsys, "describe", str(tiny_sft))
    assert "transformer" in table and "6,590,590" in table
    assert json.loads(printed(capsys, "describe", str(tiny_sft), "--json"))["size_bytes"] == 6_590_590


def test_describe_what_is_not_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "30,139,423,760" in printed(capsys, "describe", "pro-distill")


def test_check_command(capsys: pytest.CaptureFixture[str], tiny_sft: Path) -> None:
    assert "names and shapes are the models' own" in printed(capsys, "check", str(tiny_sft))
    assert json.loads(printed(capsys, "check", str(tiny_sft), "--headers-only", "--json"))["shapes_compared"] is False


def test_synth_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from yellowsound.weights import shapes

    monkeypatch.setitem(shapes._SIZES["lite"], "num_text_blocks", 1)
    for key in ("model_dim", "ff_dim", "time_dim", "model_dim_a", "ff_dim_a", "time_dim_a", "axes_dims", "axes_dims_a"):
        monkeypatch.setitem(shapes._SIZES["lite"], key, TINY[key])
    out = tmp_path / "made"
    arguments = ("synth", str(out), "--like", "lite", "--components", "transformer", "--blocks", "2", "--json")
    facts = json.loads(printed(capsys, *arguments))
    assert facts["like"] == "lite" and "vae" in facts["absent"]
    assert Checkpoint.open(out).components["transformer"].config["num_visual_blocks"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("describe", "nowhere"), "nowhere: found no such folder"),
        (("download", "prod"), "no published checkpoint"),
        (("synth", "/tmp", "--like", "vsr"), "only generation checkpoints"),
        (("check", "/"), "model_index.json"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["weights", *arguments])
    told = capsys.readouterr()
    assert caught.value.code == 2 and words in told.err and not told.out
    assert len(told.err.strip().splitlines()) == 1
