"""A clip saves itself, names itself safely, and its file explains itself."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fixtures_media import read_mp4, tone

from yellowsound.clip import MAX_NAME_BYTES, Clip, output_path, read_metadata, slug_for

PROMPTS = {
    "猫" * 90: "clip",
    "**Phase 1** a/b\\c:d": "phase-1-a-b-c-d",
    "../../x": "x",
    "two\nlines": "two-lines",
    "👨‍👩‍👧‍👦": "clip",
    "Été à la plage": "ete-a-la-plage",
    "a red ball bounces on a drum": "a-red-ball-bounces-on-a-drum",
    "": "clip",
    ".hidden": "hidden",
    "nul\0byte": "nul-byte",
}


def clip(metadata: dict[str, object] | None = None, sound: np.ndarray | None = None) -> Clip:
    frames = np.random.default_rng(0).integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)
    return Clip(frames, sound, 44_100, 24.0, metadata or {})


@pytest.mark.parametrize("prompt, slug", PROMPTS.items(), ids=range(len(PROMPTS)))
def test_slugs_are_plain_ascii(prompt: str, slug: str) -> None:
    assert slug_for(prompt) == slug


def test_long_prompts_are_cut_to_120_bytes() -> None:
    assert slug_for("word " * 6000) == "-".join(["word"] * 24)  # 119 bytes: the 120th would be a hyphen
    assert slug_for("x" * 32_000) == "x" * 120


@pytest.mark.parametrize("prompt", [*PROMPTS, "x" * 32_000], ids=range(len(PROMPTS) + 1))
def test_names_stay_in_their_folder_and_are_short(tmp_path: Path, prompt: str) -> None:
    path = output_path(tmp_path, prompt, 2**63 - 1)
    assert path.parent == tmp_path and path.suffix == ".mp4"
    assert path.name.isascii() and len(path.name.encode()) <= MAX_NAME_BYTES
    assert str(2**63 - 1) in path.name


def test_two_runs_in_the_same_second_give_two_files(tmp_path: Path) -> None:
    """Both pick a name before either has written a file."""

    def run(_: int) -> Path:
        return clip({"prompt": "a cat", "seed": 7}).save(output_path(tmp_path, "a cat", 7))

    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(run, range(4)))
    assert len(set(paths)) == 4 == len(os.listdir(tmp_path))


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_every_prompt_can_be_saved_and_stays_as_it_was(tmp_path: Path, prompt: str) -> None:
    metadata = {"prompt": prompt, "seed": 9007199254740993, "versions": {"yellowsound": "0.1.0"}}
    path = clip(metadata).save(output_path(tmp_path, prompt, 9007199254740993))
    assert read_metadata(path) == metadata


def test_save_writes_picture_and_sound(tmp_path: Path) -> None:
    made = clip(sound=tone(0.3))
    path = made.save(str(tmp_path / "clip.mp4"))
    assert path == tmp_path / "clip.mp4"
    facts = read_mp4(path)
    assert len(facts.frames) == 5 and facts.sound is not None
    assert made.duration_seconds == pytest.approx(facts.container_seconds, abs=0.001)


def test_saving_twice_needs_permission(tmp_path: Path) -> None:
    path = clip().save(tmp_path / "clip.mp4")
    with pytest.raises(FileExistsError, match="exists already"):
        clip().save(path)
    assert clip().save(path, overwrite=True) == path


def test_level_is_passed_on(tmp_path: Path) -> None:
    quiet = clip(sound=tone(0.3, peak=0.02))
    facts = read_mp4(quiet.save(tmp_path / "clip.mp4", audio_level=-12.0))
    assert facts.sound is not None
    assert np.abs(facts.sound).max() == pytest.approx(10 ** (-12 / 20) * 2**0.5, abs=0.04)


def test_wrong_arrays_are_no_clip() -> None:
    with pytest.raises(ValueError, match="uint8"):
        Clip(np.zeros((5, 64, 96, 3), np.float32), None, 44_100, 24.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="waveform"):
        Clip(np.zeros((5, 64, 96, 3), np.uint8), np.zeros(9, np.float32), 44_100, 24.0)
    assert repr(clip()) == "Clip(96x64, 5 frames at 24 fps, no sound)"
