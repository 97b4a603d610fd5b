"""The demo checkpoint as packaged: complete in both flavours, small, and what the pipeline expects of a tokenizer."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from yellowsound.checkpoint import Checkpoint
from yellowsound.demo import CHECKPOINT, FLAVOURS, folder


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_flavour_is_a_complete_checkpoint(flavour, tmp_path):
    checkpoint = Checkpoint.open(folder(flavour, cache=tmp_path))
    assert checkpoint.variant == flavour and checkpoint.has_audio
    defaults = checkpoint.defaults
    assert (defaults.width, defaults.height, defaults.num_frames) == (192, 128, 49)
    config = checkpoint.components["transformer"].config
    assert sum(config["axes_dims"]) == 64 and sum(config["axes_dims_a"]) == 64
    assert config["num_visual_blocks"] >= 6


def test_the_package_holds_at_most_20_mb():
    assert sum(f.stat().st_size for f in CHECKPOINT.rglob("*") if f.is_file()) <= 20_000_000


def test_an_unknown_flavour_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="piflow or flow"):
        folder("pro", cache=tmp_path)  # type: ignore[arg-type]


def test_several_at_once_get_the_same_whole_folder(tmp_path):
    with ThreadPoolExecutor(6) as pool:
        folders = set(pool.map(lambda _: folder("flow", cache=tmp_path), range(12)))
    assert len(folders) == 1 and [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    Checkpoint.open(folders.pop())


def test_a_cleaned_up_cache_is_made_whole_again(tmp_path):
    first = folder("piflow", cache=tmp_path)
    (first / "model_index.json").unlink()
    assert folder("piflow", cache=tmp_path) == first
    assert (first / "model_index.json").exists()


def test_other_weights_get_another_folder(tmp_path):
    source = tmp_path / "source"
    for place in ("common/vae/config.json", "flow/model_index.json"):
        (source / place).parent.mkdir(parents=True)
        (source / place).write_text("{}")
    first = folder("flow", source=source, cache=tmp_path / "cache")
    (source / "flow/model_index.json").write_text('{"a": 1}')
    assert folder("flow", source=source, cache=tmp_path / "cache") != first


def test_a_cache_that_cannot_be_written_falls_back_to_temporary_files(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    made = folder("flow", cache=tmp_path / "file" / "cache")
    assert made.is_relative_to(tmp_path / "tmp") and (made / "model_index.json").exists()


def test_damage_of_unchanged_size_is_mended(tmp_path):
    first = folder("flow", cache=tmp_path)
    file = first / "vae/diffusion_pytorch_model.safetensors"
    whole, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(file, ns=times)
    assert folder("flow", cache=tmp_path) == first and file.read_bytes() == whole
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """A cache folder on a disk that takes the first file only; temporary files lie on another."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    cache, copy = tmp_path / "cache", shutil.copyfile

    def refusing(source, target):
        if target.is_relative_to(cache) and any(p.is_file() for p in cache.rglob("*")):
            raise OSError(28, "No space left on device", str(source))
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", refusing)
    return cache


def test_a_full_disk_falls_back_to_temporary_files(full_disk, tmp_path):
    made = folder("flow", cache=full_disk)
    assert made.is_relative_to(tmp_path / "tmp") and (made / "model_index.json").exists()
    assert list(full_disk.iterdir()) == []
    assert folder("flow", cache=full_disk) == made


def test_two_full_disks_are_said_with_the_bytes_needed(full_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(full_disk))
    with pytest.raises(
        OSError, match=r"the demo needs \d+,\d{3},\d{3} bytes in .*cache or .*: No space left on device"
    ):
        folder("flow", cache=full_disk)


def test_nothing_is_left_behind_where_damage_cannot_be_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    first = folder("flow", cache=tmp_path / "cache")
    shutil.rmtree(first / "vae")
    (first / "vae").write_text("a file where a folder belongs")
    assert folder("flow", cache=tmp_path / "cache").is_relative_to(tmp_path / "tmp")
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_the_template_takes_129_tokens_and_each_word_of_a_caption_one(tmp_path):
    from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock
    from transformers import AutoTokenizer

    from yellowsound.demo.world import vocabulary

    tokenizer = AutoTokenizer.from_pretrained(folder("flow", cache=tmp_path) / "tokenizer")
    prefix = tokenizer(stock._PROMPT_TEMPLATE.split("{}")[0])["input_ids"]
    assert len(prefix) == stock._QWEN_CROP_START
    assert tokenizer.padding_side == "right"
    assert all(len(tokenizer.tokenize(f" {word}")) == 1 for word in vocabulary())
