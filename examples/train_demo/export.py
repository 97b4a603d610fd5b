"""Puts trained weights into the package: ``python export.py WORK --command "..." --machine "..."``.

Refuses weights that the judge has not scored, or that changed since. Writes PROVENANCE.json beside the weights: commit,
command, machine, the judge's numbers and the hash of every file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from build import PACKAGE

LIMIT_BYTES = 20_000_000
SKIPPED = {"READY"}


def export(work: Path, package: Path, command: str, machine: str) -> dict[str, Any]:
    """Copy the folders of ``work`` over ``package``; returns the provenance. Raises SystemExit with the reason."""
    files = {p.relative_to(work): p for f in ("common", "flow", "piflow") for p in sorted((work / f).rglob("*"))}
    files = {place: p for place, p in files.items() if p.is_file() and p.name not in SKIPPED}
    total = sum(p.stat().st_size for p in files.values())
    if total > LIMIT_BYTES:
        raise SystemExit(f"{work}: {total / 1e6:.1f} MB, at most {LIMIT_BYTES / 1e6:.0f} MB go into the package")
    provenance = {
        "trained": True,
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(
            _git("status", "--porcelain", "--", "examples/train_demo", "src/yellowsound/demo")
        ),
        "command": command,
        "machine": machine,
        "judge": {name: _numbers(work, name) for name in ("reconstruction", "flow", "piflow")},
        "sha256": {place.as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for place, p in files.items()},
    }
    for place, path in files.items():
        (package / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, package / place)
    (package / "PROVENANCE.json").write_text(json.dumps(provenance, indent=1) + "\n")
    return provenance


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
    parser.add_argument("--command", required=True, help="the command that trained the weights")
    parser.add_argument("--machine", required=True, help="card and driver it ran on")
    parser.add_argument("--package", type=Path, default=PACKAGE)
    arguments = parser.parse_args()
    print(
        json.dumps(export(arguments.work, arguments.package, arguments.command, arguments.machine)["judge"], indent=1)
    )


if __name__ == "__main__":
    main()
