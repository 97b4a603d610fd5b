"""Puts trained weights into the package: ``python export.py WORK stages.json``.

Refuses weights that the judge has not scored, or that changed since. Writes PROVENANCE.json beside the weights: how
each part was trained (from the file named), the judge's numbers and the hash of every file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import architecture
import torch
from build import PACKAGE, write_index
from safetensors.torch import load_file, save_file

LIMIT_BYTES = 20_000_000
SKIPPED = {"READY"}
FOLDERS = ("common", *architecture.FLAVOURS)
TOLD = {"part", "command", "commit", "machine", "seed", "seconds"}  # what is told of each stage, at least


def export(work: Path, package: Path, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Put ``work`` in the place of ``package``; returns the provenance. Raises SystemExit with the reason.

    Defaults are architecture's own. What was kept as float32 is stored as bfloat16, as all the rest is.
    """
    for i, stage in enumerate(stages):
        if missing := TOLD - stage.keys():
            raise SystemExit(f"stage {i} ({stage.get('part', 'no part')}): does not tell {', '.join(sorted(missing))}")
    judged = {name: _numbers(work, name) for name in ("reconstruction", *architecture.FLAVOURS)}
    fresh = package.parent / f".{package.name}-new"
    shutil.rmtree(fresh, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(work / folder, fresh / folder, ignore=shutil.ignore_patterns(*SKIPPED))
    for flavour in architecture.FLAVOURS:
        write_index(fresh / flavour, flavour)
    for file in fresh.rglob("config.json"):
        file.write_text(json.dumps(_of_the_model(json.loads(file.read_text())), indent=2) + "\n")
    halved = [path.relative_to(fresh).as_posix() for path in sorted(fresh.rglob("*.safetensors")) if _halve(path)]
    provenance = {
        "trained": True,
        "exported_at_commit": _git("rev-parse", "HEAD"),
        "stages": stages,
        "stored_as_bfloat16_judged_as_float32": halved,
        "judge": judged,
        "sha256": {p.relative_to(fresh).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in _files(fresh)},
    }
    (fresh / "PROVENANCE.json").write_text(json.dumps(provenance, indent=1) + "\n")
    total = sum(p.stat().st_size for p in _files(fresh))
    if total > LIMIT_BYTES:
        shutil.rmtree(fresh)
        raise SystemExit(f"{work}: {total / 1e6:.2f} MB, at most {LIMIT_BYTES / 1e6:.0f} MB go into the package")
    shutil.rmtree(package, ignore_errors=True)
    fresh.rename(package)
    return provenance


def _files(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    for path in found:
        path.chmod(0o644)
    return found


def _of_the_model(config: Any) -> Any:
    """``config`` without what is of the training: the folder that it was read from and float32."""
    if not isinstance(config, dict):
        return config
    kept = {k: _of_the_model(v) for k, v in config.items() if k != "_name_or_path"}
    return {k: v for k, v in kept.items() if (k, v) != ("dtype", "float32")}


def _halve(file: Path) -> bool:
    """Store float32 tensors as bfloat16; whether there were any."""
    tensors = load_file(file)
    if not any(tensor.dtype == torch.float32 for tensor in tensors.values()):
        return False
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, file, {"format": "pt"})
    return True


def _numbers(work: Path, name: str) -> Any:
    file = work / f"numbers_{name}.json"
    if not file.exists():
        raise SystemExit(f"{file}: not there; score the weights first: train.py judge --flavour {name}")
    folders = [work / "common"] if name == "reconstruction" else [work / "common", work / name]
    if any(p.stat().st_mtime > file.stat().st_mtime for f in folders for p in f.rglob("*.safetensors")):
        raise SystemExit(f"{file}: older than the weights; score them again: train.py judge --flavour {name}")
    return json.loads(file.read_text())


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("stages", type=Path, help=f"JSON list; each entry tells {', '.join(sorted(TOLD))}")
    parser.add_argument("--package", type=Path, default=PACKAGE)
    arguments = parser.parse_args()
    provenance = export(arguments.work, arguments.package, json.loads(arguments.stages.read_text()))
    print(json.dumps(provenance["judge"], indent=1))


if __name__ == "__main__":
    main()
