"""Downloads from a hub on loopback: faults, resuming, room on the disk, offline. Each runs in a process of its own,

because huggingface_hub reads its environment once, when imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_hub import COMMIT, FakeHub, serving

from yellowsound.weights.catalog import find

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
CODE = """
import json, sys
from yellowsound.weights import catalog, download
{before}
try:
    got = download.download(catalog.find({name!r}), quiet=True{extra})
    print(json.dumps({{"folder": str(got.folder), "revision": got.revision,
                       "total": got.total_bytes, "fetched": got.fetched_bytes}}))
except download.DownloadError as error:
    print(error); sys.exit(2)
"""


@pytest.fixture
def hub(tiny_distill: Path) -> Iterator[FakeHub]:
    with serving(FakeHub.of_folder(tiny_distill)) as hub:
        yield hub


def run(
    home: Path, url: str, *, name: str = "lite-distill", before: str = "", extra: str = "", **environment: str
) -> tuple[int, Any, str]:
    """Exit code, last line of stdout (JSON when it went well) and stderr of one download."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS", "KANDINSKY"))}
    settings = {"HF_HOME": str(home / "hf"), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HOME": str(home)}
    code = CODE.format(name=name, before=before, extra=extra)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **settings, **environment}, capture_output=True, text=True
    )
    line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    return done.returncode, json.loads(line) if done.returncode == 0 else line, done.stderr


def test_complete_download(hub: FakeHub, tmp_path: Path, tiny_distill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, got, stderr = run(tmp_path, hub.url)
    assert code == 0, stderr
    folder = Path(got["folder"])
    assert folder.is_relative_to(tmp_path / "hf" / "hub") and got["revision"] == COMMIT
    assert got["total"] == got["fetched"] == sum(len(data) for data in hub.files.values())
    assert (folder / WEIGHTS).read_bytes() == (tiny_distill / WEIGHTS).read_bytes()
    from yellowsound.checkpoint import Checkpoint
    from yellowsound.weights import catalog

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("KANDINSKY_HOME", raising=False)
    for name in ("lite-distill", "kandinskylab/Kandinsky-6.0-Lite-distill-5s-Diffusers"):
        assert catalog.resolve(name) == folder
    assert Checkpoint.open(folder).revision == COMMIT
    (folder / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"not usable.*yellowsound weights download lite-distill"):
        catalog.resolve("lite-distill")


def test_second_download_fetches_nothing(hub: FakeHub, tmp_path: Path) -> None:
    assert run(tmp_path, hub.url)[0] == 0
    before = len([r for r in hub.requests if r[0] == "GET" and "/resolve/" in r[1]])
    code, got, _ = run(tmp_path, hub.url)
    assert code == 0 and got["fetched"] == 0 and got["total"] > 6_000_000
    assert len([r for r in hub.requests if r[0] == "GET" and "/resolve/" in r[1]]) == before


def test_kandinsky_home(hub: FakeHub, tmp_path: Path) -> None:
    code, got, _ = run(tmp_path, hub.url, KANDINSKY_HOME=str(tmp_path / "kandinsky"))
    assert code == 0 and Path(got["folder"]).is_relative_to(tmp_path / "kandinsky" / "weights")
    code, again, _ = run(tmp_path, hub.url, KANDINSKY_HOME=str(tmp_path / "kandinsky"), HF_HUB_OFFLINE="1")
    assert code == 0 and again["folder"] == got["folder"] and again["fetched"] == 0


def test_cut_connection_resumes_at_the_byte(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after[WEIGHTS] = 100_000
    small_chunks = "import huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 32768"  # stock: 10 MiB
    code, got, stderr = run(tmp_path, hub.url, before=small_chunks)
    assert code == 0, stderr
    assert hub.fetched(WEIGHTS) == ["", f"bytes={100_000 // 32768 * 32768}-"]
    assert (Path(got["folder"]) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_files_that_arrived_are_kept(hub: FakeHub, tmp_path: Path) -> None:
    missing = hub.files.pop(WEIGHTS)
    code, line, _ = run(tmp_path, hub.url)
    assert code == 2 and "not usable" in line and WEIGHTS in line
    hub.files[WEIGHTS] = missing
    for cached in (tmp_path / "hf/hub").rglob("trees/*.json"):  # the hub's own memory of the listing
        cached.unlink()
    vae_fetches = len(hub.fetched("vae/diffusion_pytorch_model.safetensors"))
    code, got, _ = run(tmp_path, hub.url)
    assert code == 0 and got["fetched"] == len(missing)
    assert len(hub.fetched("vae/diffusion_pytorch_model.safetensors")) == vae_fetches


SMALL_PIECES = (
    "from yellowsound.weights import pieces; pieces.PIECE_BYTES, pieces.THREADS = 100_000, 2\n"
    "download.LARGE_BYTES = 2_000_000"
)
LARGEST = "audio_vae/diffusion_pytorch_model.safetensors"  # the only file of the tiny checkpoint above that


def test_killed_download_goes_on_with_the_missing_pieces(hub: FakeHub, tmp_path: Path) -> None:
    size = len(hub.files[LARGEST])
    hub.fail_pieces_after = 5
    code, line, stderr = run(tmp_path, hub.url, before=SMALL_PIECES)
    assert code == 2 and "503" in line and "Traceback" not in stderr
    assert 6 <= len(hub.fetched(LARGEST)) < -(-size // 100_000)
    assert not list((tmp_path / "hf").rglob("snapshots/*/audio_vae/*.safe*"))
    hub.fail_pieces_after, before = None, len(hub.requests)
    code, got, stderr = run(tmp_path, hub.url, before=SMALL_PIECES)
    assert code == 0, stderr
    again = [r for method, path, r in hub.requests[before:] if method == "GET" and path.endswith(LARGEST)]
    assert len(again) == -(-size // 100_000) - 5 and len(set(again)) == len(again)
    assert (Path(got["folder"]) / LARGEST).read_bytes() == hub.files[LARGEST]
    assert got["total"] - got["fetched"] == 500_000
    assert not list((tmp_path / "hf").rglob("*.pieces")) and not list((tmp_path / "hf").rglob("*.done"))


def test_wrong_bytes_are_not_kept(hub: FakeHub, tmp_path: Path) -> None:
    data = bytearray(hub.files[LARGEST])
    data[-1] ^= 1
    hub.served[LARGEST] = bytes(data)
    code, line, _ = run(tmp_path, hub.url, before=SMALL_PIECES)
    assert code == 2 and "not the hub's" in line and not list((tmp_path / "hf").rglob("*.pieces"))
    del hub.served[LARGEST]
    assert run(tmp_path, hub.url, before=SMALL_PIECES)[0] == 0


def test_a_proxy_that_ignores_ranges(hub: FakeHub, tmp_path: Path) -> None:
    hub.ignore_range = True
    code, line, _ = run(tmp_path, hub.url, before=SMALL_PIECES)
    assert code == 2 and "ignores the Range header" in line


def test_cut_piece_resumes_at_the_byte(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after[LARGEST] = 50_000
    chunks = "import huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 16384\n"
    code, got, stderr = run(tmp_path, hub.url, before=chunks + SMALL_PIECES)
    assert code == 0, stderr
    assert (Path(got["folder"]) / LARGEST).read_bytes() == hub.files[LARGEST]
    assert len(hub.fetched(LARGEST)) == -(-len(hub.files[LARGEST]) // 100_000) + 1


def test_too_little_disk_refuses_before_the_first_byte(hub: FakeHub, tmp_path: Path) -> None:
    full = (
        "import shutil, collections; U = collections.namedtuple('U', 'total used free')\n"
        "shutil.disk_usage = lambda place: U(9, 8, 70_000_000)"
    )
    code, line, _ = run(tmp_path, hub.url, before=full)
    assert code == 2 and "0.07 GB are free" in line and "KANDINSKY_HOME or HF_HOME" in line
    assert not [r for r in hub.requests if "/resolve/" in r[1]]
    assert not list((tmp_path / "hf").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("status", "error_code", "token", "words"),
    [
        (401, "GatedRepo", "", "logged in (401): accept the terms"),
        (401, "", "", "logged in (401): accept the terms"),
        (401, "", "hf_wrong", "does not know your token"),
        (403, "GatedRepo", "hf_good", "no access to pro yet (403): accept the terms"),
        (403, "", "hf_good", "no access to pro yet (403)"),
        (404, "RepoNotFound", "hf_good", "renamed or withdrawn"),
        (404, "RevisionNotFound", "hf_good", "no such revision"),
    ],
)
def test_refusals_are_one_sentence(
    hub: FakeHub, tmp_path: Path, status: int, error_code: str, token: str, words: str
) -> None:
    hub.status, hub.error_code = status, error_code
    code, line, stderr = run(tmp_path, hub.url, name="pro", **({"HF_TOKEN": token} if token else {}))
    assert code == 2 and words in line and "Traceback" not in stderr
    if status in (401, 403):
        assert "HF_TOKEN" in line or "the account of your token" in line


def test_no_connection(tmp_path: Path) -> None:
    code, line, _ = run(tmp_path, "http://127.0.0.1:9")
    assert code == 2 and "connection" in line and "weights download lite-distill" in line


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_touches_no_network(hub: FakeHub, tmp_path: Path, variable: str) -> None:
    code, line, _ = run(tmp_path, hub.url, **{variable: "1"})
    assert code == 2 and "network is switched off" in line and not hub.requests


def test_revision_is_passed_on(hub: FakeHub, tmp_path: Path) -> None:
    code, got, _ = run(tmp_path, hub.url, extra=f", revision={COMMIT!r}")
    assert code == 0 and got["revision"] == COMMIT
    assert any(COMMIT in path for _, path, _ in hub.requests)


def test_the_catalog_knows_the_name() -> None:
    assert find("lite-distill") is not None
