"""verify: equal on both tiny checkpoints, and not after one weight was changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from yellowsound.checkpoint import Checkpoint
from yellowsound.measure.verify import Verdict, _look, verify
from yellowsound.memory.resident import Models

SMALL: dict[str, Any] = {"width": 48, "height": 32, "num_frames": 5, "steps": 2, "device": "cpu"}
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def states(verdict: Verdict) -> dict[str, str]:
    return {finding.what: finding.state for finding in verdict.findings}


@pytest.mark.parametrize(("flavour", "dtype"), [("sft", "float32"), ("distill", "bfloat16")])
def test_tiny_checkpoints_are_equal(tiny_sft: Path, tiny_distill: Path, flavour: str, dtype: str) -> None:
    verdict = verify(tiny_sft if flavour == "sft" else tiny_distill, **SMALL, dtype=dtype)
    found = states(verdict)
    assert verdict.passed, verdict
    for what in ("names and shapes", "video latents", "audio latents", "frames", "waveform"):
        assert found[what] == "equal"
    assert found["headers"] == found["file contents"] == "not compared"
    assert json.loads(json.dumps(verdict.to_json()))["passed"] is True


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("transformer", "visual_transformer_blocks.2.video_dec_block.feed_forward.net.2.weight"),
        ("qwen", "model.language_model.layers.1.mlp.down_proj.weight"),
        ("vocoder", "conv_pre.bias"),
    ],
)
def test_one_changed_weight(tiny_sft: Path, monkeypatch: pytest.MonkeyPatch, part: str, name: str) -> None:
    load = Models._load

    def load_changed(self: Models, wanted: str) -> Any:
        loaded = load(self, wanted)
        if wanted == part:
            with torch.no_grad():
                loaded.get_parameter(name).view(-1)[0] += 0.5
        return loaded

    monkeypatch.setattr(Models, "_load", load_changed)
    verdict = verify(tiny_sft, **SMALL)
    assert not verdict.passed
    found = states(verdict)
    if part == "vocoder":
        assert (found["video latents"], found["frames"], found["waveform"]) == ("equal", "equal", "differs")
    else:
        assert (found["video latents"], found["audio latents"]) == ("differs", "differs")


def as_download(folder: Path, home: Path) -> Path:
    """``folder`` as a hub cache holds it: weight files are links to blobs named by their SHA-256."""
    repository = home / "models--x--tiny"
    target = shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "blobs").mkdir()
    for file in target.rglob("*.safetensors"):
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blob)
        file.symlink_to(blob)
    return target


def test_one_changed_byte_of_a_download(tiny_distill: Path, tmp_path: Path) -> None:
    folder = as_download(tiny_distill, tmp_path)
    (known,) = {finding.state for finding in _look(Checkpoint.open(folder), True) if finding.what == "file contents"}
    assert known == "equal"
    blob = (folder / WEIGHTS).resolve()
    data = bytearray(blob.read_bytes())
    data[-100] ^= 1
    blob.write_bytes(data)
    verdict = verify(folder, **SMALL)
    assert states(verdict)["file contents"] == "differs" and not verdict.passed
    assert states(verdict)["video latents"] == "equal"  # both read the same damage
    (left_out,) = [f for f in _look(Checkpoint.open(folder), False) if f.what == "file contents"]
    assert (left_out.state, left_out.detail) == ("not compared", "left out")


def test_without_audio_parts(tiny_sft: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "silent")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"audio_vae": [None, None], "vocoder": [None, None]}
    (folder / "model_index.json").write_text(json.dumps(index))
    verdict = verify(folder, **SMALL)
    found = states(verdict)
    assert verdict.passed and found["video latents"] == "equal" and found["waveform"] == "not compared"


def test_without_text_parts_nothing_is_shown(tiny_sft: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_sft, tmp_path / "mute")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "text_encoder": [None, None]}))
    (folder / "yellowsound.json").write_text('{"absent": ["text_encoder"]}')
    verdict = verify(folder, **SMALL)
    assert not verdict.passed and states(verdict)["video latents"] == "not compared"
    assert "lacks text_encoder" in verdict.findings[-1].detail


def test_command(tiny_sft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from yellowsound.cli.verify import verify as command

    command(str(tiny_sft), size="48x32", frames=5, steps=2, device="cpu", json=True)
    assert json.loads(capsys.readouterr().out)["passed"] is True
