"""Imports point downwards only, and what must be quick or serve without a GPU never imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import yellowsound

SRC = Path(yellowsound.__file__).parent

# Each room may import from the rooms named; a module at the package's top is a room of its own.
CHECKPOINT = {"checkpoint", "checkpoint_files", "checkpoint_fit", "checkpoint_identity", "safetensors_header"}
LOW = CHECKPOINT | {"request", "recipe", "events", "cache"}
WEIGHTS = LOW | {"weights", "demo"}
MEMORY = WEIGHTS | {"memory", "presets"}
STAGES = MEMORY | {"speed", "stages", "clip"}
ENGINE = STAGES | {"run", "metadata", "residency", "engine"}
ARROWS = {
    **dict.fromkeys(LOW, LOW),
    "demo": LOW | {"demo"},
    "weights": WEIGHTS,
    "presets": MEMORY,
    "memory": MEMORY,
    "speed": MEMORY | {"speed"},
    "stages": STAGES,
    "clip": STAGES,
    "run": STAGES | {"run"},
    "metadata": STAGES | {"run", "metadata"},
    "residency": STAGES | {"run", "residency"},
    "engine": ENGINE,
    "measure": ENGINE | {"measure"},
    "serve": ENGINE | {"serve"},
    "cli": ENGINE | {"measure", "serve", "cli"},
}

TORCH_FREE = (
    "yellowsound",
    "yellowsound.request",
    "yellowsound.recipe",
    "yellowsound.checkpoint",
    "yellowsound.events",
    "yellowsound.memory.plan",
    "yellowsound.memory.budget",
    "yellowsound.weights.catalog",
    "yellowsound.weights.download",
    "yellowsound.serve.app",
    "yellowsound.serve.dispatch",
    "yellowsound.serve.jobs",
    "yellowsound.cli",
    "yellowsound.cli.generate",
    "yellowsound.cli.plan",
    "yellowsound.cli.serve",
    "yellowsound.cli.weights",
    "yellowsound.cli.doctor",
)


def room(module: str) -> str:
    """``yellowsound.memory.plan`` is in the room ``memory``; ``yellowsound`` itself is every room's floor."""
    return module.split(".")[1] if "." in module else ""


def imports(file: Path) -> set[str]:
    """The project's modules that a file imports anywhere, type-checking blocks left out."""
    tree = ast.parse(file.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" if node.module == "yellowsound" else node.module for a in node.names}
    return {name for name in found if name.startswith("yellowsound.")}


FILES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(SRC)) for f in FILES])
def test_arrows_point_down(file: Path) -> None:
    here = file.relative_to(SRC).parts[0].removesuffix(".py")
    if here in ("__init__", "__main__"):
        return
    assert here in ARROWS, f"{here} is a new room: say in ARROWS whom it may know"
    wrong = {name for name in imports(file) if room(name) not in ARROWS[here] | {"__version__", "environment"}}
    assert not wrong, f"{here} may not know {sorted(wrong)}"


@pytest.mark.parametrize("module", TORCH_FREE)
def test_torch_free(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(m in sys.modules for m in ('torch', 'diffusers', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_under_speed_is_imported_by_an_exact_run() -> None:
    code = "import sys, yellowsound.engine; sys.exit(any('yellowsound.speed.' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
