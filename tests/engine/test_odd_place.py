"""Case T-E4: a read-only checkpoint under a path with spaces and foreign letters, a read-only home, and no network."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--map-root-user", "--net", "--mount"]


def has_namespaces() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not has_namespaces(), reason="needs unprivileged namespaces")
def test_clip_from_a_read_only_place_without_network(tiny_distill: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_distill, tmp_path / "k6 модель 模型" / "v 1")
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    frozen = [
        f"mount --bind {shlex.quote(str(p))} {shlex.quote(str(p))} && mount -o remount,ro,bind {shlex.quote(str(p))}"
        for p in (folder, home)
    ]
    refused = (
        f"! touch {shlex.quote(str(folder / 'x'))} 2>/dev/null && ! touch {shlex.quote(str(home / 'x'))} 2>/dev/null"
    )
    clip = [sys.executable, "-m", "yellowsound", "generate", "a cat", "--checkpoint", str(folder), "--out", "clip.mp4"]
    options = ["--size", "48x32", "--frames", "5", "--steps", "4", "--seed", "1", "--json"]
    script = " && ".join([*frozen, refused, shlex.join([*clip, *options])])
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [*NAMESPACE, "sh", "-c", script], cwd=out, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert [path.name for path in out.iterdir()] == ["clip.mp4"] and not list(home.iterdir())
