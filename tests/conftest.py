"""Fixtures every test may use: one torch thread, and the two tiny checkpoints assembled from tests/golden."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

GOLDEN = Path(__file__).parent / "golden"


def _assemble(flavour: str, folder: Path) -> Path:
    """A complete checkpoint: the parts both flavours share, then what is the flavour's own."""
    target = folder / f"tiny-k6-{flavour}"
    for part in ("common", flavour):
        shutil.copytree(GOLDEN / "tiny" / part, target, dirs_exist_ok=True)
    return target


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or leaves anything in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tiny_sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny flow checkpoint (guidance, Euler). Shared by the session: copy it before changing it."""
    return _assemble("sft", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_distill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny distilled checkpoint (PiFlow). Shared by the session: copy it before changing it."""
    return _assemble("distill", tmp_path_factory.mktemp("tiny"))
