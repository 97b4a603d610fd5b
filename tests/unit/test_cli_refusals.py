"""What commands refuse is one line that names the option, its value and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from yellowsound.cli import main


def refusal(capsys: Any, *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    error = str(capsys.readouterr().err)
    assert end.value.code == 2 and error.count("\n") == 1 and "TRACEBACK" not in error, error
    return error


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--workers", "0", "workers=0: must be 1 or more"),
        ("--workers", "1.5", "1.5"),
        ("--port", "80.5", "80.5"),
        ("--fair-runs", "0", "fair_runs=0: must be 1 or more"),
        ("--queue-limit", "0", "queue_limit=0: must be more than 0"),
        ("--run-limit-seconds", "0", "run_limit_seconds=0.0: must be more than 0"),
        ("--run-limit-seconds", "nan", "run_limit_seconds=nan: must be more than 0"),
        ("--retention-hours", "-1", "retention_hours=-1.0: must be 0 or more"),
        ("--retention-hours", "inf", "retention_hours=inf: must be 0 or more, and finite"),
        ("--disk-floor-gib", "nan", "disk_floor_gib=nan: must be 0 or more"),
        ("--ray-gpus", "-1", "ray_gpus=-1.0: must be 0 or more"),
        ("--log-level", "loud", "loud"),
    ],
)
def test_serve(option: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("yellowsound.cli.serve._run", lambda *_: pytest.fail("the server would have started"))
    assert words in refusal(capsys, "serve", f"{option}={value}")


def test_a_file_of_keys_that_is_no_text(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "keys").write_bytes(b"key\n\xff")
    assert "api_key_file=" in refusal(capsys, "serve", "--api-key-file", tmp_path / "keys")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["synth", "OUT", "--like", "lite", "--blocks", "1", "--components", "transformer", "--seed=-1"], "seed=-1: "),
        (["synth", "OUT", "--seed", "1.5"], "1.5"),
        (["synth", "OUT", "--blocks", "1.5"], "1.5"),
        (["synth", "OUT", "--blocks", "0"], "blocks=0: must be from 1 to 60"),
        (["synth", "OUT", "--like", "large"], "like=large: is no published checkpoint; known: pro,"),
        (["synth", "OUT", "--like", "vsr"], "like=vsr: only generation"),
        (["synth", "OUT", "--components", "x"], "components=x: unknown x; known: transformer,"),
        (["synth", "OUT", "--components", "vae"], "components=vae: transformer must be"),
        (["download", "large"], "name=large: is no published checkpoint"),
        (["describe", "vsr"], "folder=vsr: nothing is known of its headers"),
    ],
)
def test_weights(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    out = str(tmp_path / "out")
    assert words in refusal(capsys, "weights", *[out if a == "OUT" else a for a in arguments])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--frames", "--steps", "--seed"])
def test_verify_cuts_no_numbers(option: str, capsys: Any) -> None:
    assert "5.5" in refusal(capsys, "verify", "demo", option, "5.5")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\xff", "prompts="),
        (b'{"seed": 3}', "prompts.txt line 1: prompt=None: must be given"),
        (b'{"prompt": "x", "image": 5}', "prompts.txt line 1: image=5: must be the path"),
        (b'{"a":' * 100_000, "prompts.txt line 1: JSON="),
    ],
    ids=["no text", "no prompt", "image", "depth"],
)
def test_prompts(line: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("yellowsound.cli.batch.load_engine", lambda _: pytest.fail("an engine would have been loaded"))
    (tmp_path / "prompts.txt").write_bytes(line)
    arguments = ["generate", "--quiet", "--prompts", tmp_path / "prompts.txt", "--out", tmp_path / "out"]
    assert words in refusal(capsys, *arguments)
