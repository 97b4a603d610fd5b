"""The eight published checkpoints and the way from a name to a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from yellowsound.checkpoint import CheckpointError
from yellowsound.weights import catalog


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "KANDINSKY_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_eight_checkpoints() -> None:
    names = [entry.name for entry in catalog.CATALOG]
    assert names == [
        "pro", "pro-distill", "pro-pretrain", "lite", "lite-distill", "lite-pretrain", "vsr-distill", "vsr",
    ]  # fmt: skip
    facts = {e.name: (e.size_bytes, e.steps, e.guidance, e.audio_latent_scale) for e in catalog.CATALOG}
    assert facts["pro"] == (89_997_268_172, 50, 5.0, 0.5302)
    assert facts["pro-distill"] == (80_607_441_652, 10, 1.0, 0.417)
    assert facts["pro-pretrain"] == (89_997_268_172, 50, 5.0, 0.417)
    assert facts["lite"] == (27_738_988_100, 50, 5.0, 0.5302)
    assert facts["lite-distill"] == (26_644_058_740, 10, 1.0, 0.417)
    assert facts["lite-pretrain"] == (27_738_988_108, 50, 5.0, 0.417)
    assert facts["vsr"] == (None, 4, 1.0, None) and facts["vsr-distill"] == (None, 2, 1.0, None)
    assert [e.name for e in catalog.CATALOG if e.gating.startswith("gated")] == ["pro"]
    assert all("CC BY-NC" in e.licences for e in catalog.CATALOG if e.task == "generate")


@pytest.mark.parametrize("name", ["demo", "demo-flow"])
def test_demo(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import yellowsound.demo

    monkeypatch.setattr(yellowsound.demo, "folder", lambda flavour: tmp_path / flavour, raising=False)
    assert catalog.resolve(name) == tmp_path / {"demo": "piflow", "demo-flow": "flow"}[name]


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalog.resolve(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lite").mkdir()
    assert catalog.resolve("./lite") == Path("lite")


def test_a_name_not_downloaded(empty_home: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        catalog.resolve("lite")
    assert str(caught.value).endswith("run `yellowsound weights download lite`")
    assert str(empty_home) in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_nobody_knows() -> None:
    with pytest.raises(CheckpointError, match="did you mean pro-distill"):
        catalog.resolve("pro-destill")


def test_where_downloads_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_home: Path) -> None:
    assert catalog.caches()[0] == empty_home / ".cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalog.caches()[0] == tmp_path / "xdg/huggingface/hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert catalog.caches()[0] == tmp_path / "hf/hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert catalog.caches()[0] == tmp_path / "hub"
    monkeypatch.setenv("KANDINSKY_HOME", str(tmp_path / "k"))
    assert catalog.caches()[:2] == [tmp_path / "k/weights", tmp_path / "hub"]


def test_newest_snapshot_without_a_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    entry = catalog.find("vsr")
    assert entry is not None and catalog.snapshot(entry) is None
    folder = tmp_path / entry.folder_name / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    assert catalog.snapshot(entry) == folder
    with pytest.raises(CheckpointError, match=r"model_index\.json: found nothing"):
        catalog.resolve("vsr")
    (folder / "model_index.json").write_text("{}")
    assert catalog.resolve("vsr") == folder


def test_no_slow_import() -> None:
    code = (
        "import sys; import yellowsound.weights.catalog, yellowsound.weights.download;"
        "assert not {'torch', 'diffusers', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
