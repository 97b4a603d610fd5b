"""yellowsound generate, as people and scripts run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from yellowsound.cli import main
from yellowsound.clip import read_metadata

FAST = ["--size", "32x48", "--frames", "5", "--steps", "4", "--device", "cpu"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def run(*arguments: object) -> int:
    """Run a command in this process; returns its exit code."""
    try:
        main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_one_clip_and_its_summary(tiny_distill: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "clip.mp4"
    assert run("generate", "a red ball", "--checkpoint", tiny_distill, *FAST, "--seed", 3, "--out", out) == 0
    shown = capsys.readouterr()
    assert "clip.mp4: 32x48, 5 frames" in shown.out and "seed 3" in shown.out
    assert "step 4 of 4" in shown.err  # no terminal: one line an event
    assert read_metadata(out)["prompt"] == "a red ball"


def test_json_is_one_document_and_nothing_else(tiny_distill: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "clip.mp4"
    assert run("generate", "x", "--checkpoint", tiny_distill, *FAST, "--out", out, "--json") == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert report["file"] == str(out) and report["frames"] == 5 and report["seed"] >= 0
    assert report["num_inference_steps"] == 4 and report["level"] == "exact"
    assert shown.err == ""


def test_quiet_says_nothing(tiny_distill: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("generate", "x", "--checkpoint", tiny_distill, *FAST, "--out", tmp_path / "c.mp4", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--size", "854x480"], ["size=854x480", "16", "848x480 or 864x480"]),
        (["x", "--seed", str(2**64 - 1)], ["seed=18446744073709551615"]),
        (["x", "--guidance", "5.0"], ["guidance_scale=5.0", "1.0"]),
        (["x", "--guidance", "nan"], ["guidance_scale=nan"]),
        (["x", "--steps", "0"], ["num_inference_steps=0", "1"]),
        (["   "], ["prompt=", "empty or blank"]),
        (["x", "--frames", "5", "--seconds", "5"], ["seconds=5"]),
        (["x", "--image", "nowhere.png"], ["image=nowhere.png"]),
        (["x", "--checkpoint", "no-such-model"], ["no-such-model"]),
        (["x", "--device", "cuda:9"], ["device=cuda:9"]),
        (["x", "--out", "clip.avi"], ["clip.avi", ".mp4"]),
        (["x", "--audio-level", "5"], ["audio_level=5"]),
        (["x", "--recipe", "fast"], ["recipe=fast", "exact, trimmed"]),
        (["x", "--seeds", "3"], ["seeds=3", "--prompts"]),
        ([], ["prompt"]),
    ],
)
def test_errors_are_one_line(
    tiny_distill: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = [] if "--checkpoint" in arguments else ["--checkpoint", str(tiny_distill)]
    assert run("generate", *arguments, *defaults, "--quiet") == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert error.count("\n") == 1 and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["1.5", "true", "7x"])
def test_what_is_no_number_is_refused(tiny_distill: Path, seed: str, capsys: Any) -> None:
    assert run("generate", "x", "--checkpoint", tiny_distill, *FAST, "--seed", seed) == 2
    error = capsys.readouterr().err
    assert "--seed" in error and seed in error and error.count("\n") == 1


def test_an_existing_file_is_kept(tiny_distill: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "clip.mp4"
    out.write_bytes(b"mine")
    assert run("generate", "x", "--checkpoint", tiny_distill, *FAST, "--out", out) == 2
    assert "clip.mp4" in capsys.readouterr().err and out.read_bytes() == b"mine"
    assert run("generate", "x", "--checkpoint", tiny_distill, *FAST, "--out", out, "--overwrite", "--quiet") == 0


def test_names_are_made_from_prompts(tiny_distill: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for prompt in ("../../x", "**Phase 1** a/b\\c:d"):
        assert run("generate", prompt, "--checkpoint", tiny_distill, *FAST, "--quiet", "--seed", 1) == 0
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 2 and all(n.isascii() and len(n) <= 120 for n in names)


def test_many_clips_resume(tiny_distill: Path, tmp_path: Path, capsys: Any) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('a cat\n\n{"prompt": "a dog", "num_inference_steps": 3}\n')
    out = tmp_path / "clips"
    batch = [
        "generate",
        "--prompts",
        prompts,
        "--seeds",
        2,
        "--out",
        out,
        "--checkpoint",
        tiny_distill,
        *FAST,
        "--json",
    ]
    assert run(*batch) == 0
    first = json.loads(capsys.readouterr().out)
    names = sorted(p.name for p in out.iterdir())
    assert names == ["0001-a-cat-0.mp4", "0001-a-cat-1.mp4", "0002-a-dog-0.mp4", "0002-a-dog-1.mp4"]
    assert [c["num_inference_steps"] for c in first["clips"]] == [4, 4, 3, 3] and first["skipped"] == 0
    kept = {p: p.stat().st_mtime_ns for p in out.iterdir()}
    (out / names[2]).unlink()
    assert run(*batch) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 3
    again = {p: p.stat().st_mtime_ns for p in out.iterdir()}
    assert sorted(p.name for p in again) == names
    assert all(again[p] == kept[p] for p in kept if p.name != names[2])


def test_a_wrong_line_is_named_before_anything_is_made(tiny_distill: Path, tmp_path: Path, capsys: Any) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('fine\n{"prompt": "x", "steps": 3}\n')
    assert run("generate", "--prompts", prompts, "--out", tmp_path / "o", "--checkpoint", tiny_distill) == 2
    error = capsys.readouterr().err
    assert "prompts.txt line 2: steps" in error and not (tmp_path / "o").exists()


def test_interrupt_stops_leaves_nothing_and_exits_130(tiny_distill: Path, tmp_path: Path) -> None:
    out = tmp_path / "clips" / "clip.mp4"
    out.parent.mkdir()
    command = [
        sys.executable,
        "-m",
        "yellowsound",
        "generate",
        "x",
        "--checkpoint",
        str(tiny_distill),
        "--out",
        str(out),
    ]
    command += ["--size", "96x64", "--frames", "5", "--steps", "200", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "step 2 of" in line:
                break
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "stopped" in rest and "Traceback" not in rest
    assert list(out.parent.iterdir()) == [] and time.monotonic() - began < 30


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_said_otherwise(given: str | None, found: str) -> None:
    code = "import os, yellowsound.cli as c\ntry: c.main(['--version'])\nfinally: print(os.environ['OMP_WAIT_POLICY'])"
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env = kept if given is None else {**kept, "OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[-1] == found


def test_help_is_quick_and_imports_nothing_slow() -> None:
    code = (
        "import sys, resource\n"
        "from yellowsound.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'diffusers', 'transformers', 'fastapi', 'pydantic'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("generate", "plan", "serve", "weights", "verify", "doctor"))
