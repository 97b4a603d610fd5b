"""The demo checkpoint as packaged: complete in both flavours, small, and what the pipeline expects of a tokenizer."""

from __future__ import annotations

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


def test_the_template_takes_129_tokens_and_each_word_of_a_caption_one(tmp_path):
    from diffusers.pipelines.kandinsky6 import pipeline_kandinsky6_ti2va as stock
    from transformers import AutoTokenizer

    from yellowsound.demo.world import vocabulary

    tokenizer = AutoTokenizer.from_pretrained(folder("flow", cache=tmp_path) / "tokenizer")
    prefix = tokenizer(stock._PROMPT_TEMPLATE.split("{}")[0])["input_ids"]
    assert len(prefix) == stock._QWEN_CROP_START
    assert tokenizer.padding_side == "right"
    assert all(len(tokenizer.tokenize(f" {word}")) == 1 for word in vocabulary())
