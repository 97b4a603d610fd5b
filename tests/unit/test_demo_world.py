"""The demo's world: what is kept for the test, how captions are made, what the judge answers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from yellowsound.demo.judge import Heard, in_step, judge, listen, look, tone_fits
from yellowsound.demo.world import (
    COLOURS,
    COUNTED,
    HELD_OUT,
    MOTIONS,
    NOUNS,
    SAMPLE_RATE,
    SHAPES,
    held_out_prompts,
    sample_chance,
    sample_prompt,
    sample_scene,
    vocabulary,
)

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train_demo"))
import render  # noqa: E402
from captions import CIRCLING, captioned  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def real_clips():
    """One true clip of the world for the first prompt of each motion, frames uint8 and sound."""
    prompts = held_out_prompts()[: len(MOTIONS)]
    rng = np.random.default_rng(1)
    batch = render.batch_of([p.scene for p in prompts], [sample_chance(rng) for _ in prompts])
    clips = []
    for i, prompt in enumerate(prompts):
        one = batch[i : i + 1]
        frames = ((render.whole_clip(one)[0] + 1) * 127.5).round().byte().permute(1, 2, 3, 0).numpy()
        clips.append((prompt, frames, render.sound(one)[0].numpy()))
    return clips


def test_test_prompts_are_frozen_and_show_only_combinations_kept_from_training():
    prompts = held_out_prompts()
    assert len(prompts) == 100 and prompts == held_out_prompts()
    assert prompts[0].text == "a green circle bouncing once on a grey floor"
    assert prompts[99].text != prompts[0].text
    assert all((p.scene.shape, p.scene.colour, p.scene.motion) in HELD_OUT for p in prompts)


def test_training_scenes_never_show_a_kept_combination():
    rng = np.random.default_rng(0)
    scenes = [sample_scene(rng, held_out=False) for _ in range(300)]
    assert not {(s.shape, s.colour, s.motion) for s in scenes} & HELD_OUT
    assert {s.shape for s in scenes} == set(SHAPES) and {s.colour for s in scenes} == set(COLOURS)


def test_training_sees_more_of_what_is_hard_and_nothing_kept():
    made = captioned(800, seed=3)
    assert not any((s.shape, s.colour, s.motion) in HELD_OUT for s in made.scenes)
    assert {s.motion for s in made.scenes} == set(MOTIONS)
    assert 0.35 < np.mean([s.motion in CIRCLING for s in made.scenes]) < 0.45
    unnamed = [p for p in made.image_prompts if p.text.startswith("it ")]
    assert 0.7 < len(unnamed) / len(made.image_prompts) < 0.8
    assert not any(shape in p.text for p in unnamed for shape in SHAPES)


def test_what_circles_goes_once_round_from_near_the_top():
    rng = np.random.default_rng(2)
    scenes = [s for s in (sample_scene(rng, held_out=False) for _ in range(300)) if s.motion in CIRCLING]
    batch = render.batch_of(scenes, [sample_chance(rng) for _ in scenes])
    x, y, _ = render.centres(batch, torch.linspace(0, render.DURATION_SECONDS, 97))
    middle_x, middle_y = ((v.max(1).values + v.min(1).values)[:, None] / 2 for v in (x, y))
    angle = np.unwrap(np.arctan2((y - middle_y).numpy(), (x - middle_x).numpy()), axis=1)
    assert np.abs(angle[:, 0] + np.pi / 2).max() < np.radians(20)
    turns = (angle[:, -1] - angle[:, 0]) / (2 * np.pi)  # clockwise is positive, since y points down
    assert np.allclose(turns, [1 if s.motion == "clockwise" else -1 for s in scenes], atol=1e-2)


def test_the_readme_examples_are_trained_combinations():
    assert ("ball", "red", "bounce") not in HELD_OUT and ("square", "green", "left") not in HELD_OUT


def test_a_caption_names_colour_and_shape_and_any_unusual_sound():
    rng = np.random.default_rng(2)
    for _ in range(200):
        scene = sample_scene(rng, held_out=False)
        text = sample_prompt(rng, scene).text.lower()
        assert scene.colour in text and any(noun in text.split() or f"{noun}." in text for noun in NOUNS[scene.shape])
        if scene.sound == "silent":
            assert "silen" in text or "without a sound" in text
        if scene.sound in ("rising", "falling"):
            assert scene.sound in text
        if scene.motion in COUNTED and scene.count == 2:
            assert "twice" in text


def test_the_judge_answers_every_question_right_on_true_clips(real_clips):
    for prompt, frames, wave in real_clips:
        answers = judge(prompt, frames, wave, SAMPLE_RATE)
        assert all(answers.values()), (prompt.text, answers)


def test_the_judge_rejects_clips_of_other_prompts(real_clips):
    for (prompt, _, _), (_, frames, wave) in zip(real_clips, real_clips[1:] + real_clips[:1], strict=True):
        answers = judge(prompt, frames, wave, SAMPLE_RATE)
        assert not answers["motion"], prompt.text
        assert sum(answers.values()) < len(answers) - 1


def test_noise_and_an_empty_picture_show_nothing():
    noise = np.random.default_rng(0).integers(0, 256, (9, 32, 48, 3), dtype=np.uint8)
    assert look(noise).motion in ("", "blink", "grow", "shrink")
    assert look(np.zeros((9, 32, 48, 3), dtype=np.uint8)).shape == ""


def test_clipped_silent_and_late_sound_is_found(real_clips):
    prompt, frames, wave = real_clips[0]
    assert prompt.scene.voice == "knock"
    assert not judge(prompt, frames, np.sign(wave) * 1.0, SAMPLE_RATE)["level"]
    assert not judge(prompt, frames, wave * 0, SAMPLE_RATE)["level"]
    late = np.roll(wave, int(0.15 * SAMPLE_RATE))
    assert not judge(prompt, frames, late.astype(np.float32), SAMPLE_RATE)["onsets"]


def test_onsets_must_lie_within_two_frames_and_be_few():
    assert in_step((0.5, 1.0), (0.55, 1.08))
    assert not in_step((0.5, 1.0), (0.55, 1.10))
    assert not in_step((0.5,), (0.5, 0.8, 1.2))
    assert not in_step((0.5,), ())


def test_tones_are_told_apart():
    rising = np.linspace(300, 900, 100)
    flat = np.full(100, 440.0)
    still = np.zeros(49)
    assert tone_fits("rising", rising, still) and not tone_fits("falling", rising, still)
    assert tone_fits("falling", rising[::-1], still) and tone_fits("steady", flat, still)
    assert not tone_fits("steady", rising, still) and not tone_fits("rising", flat, still)
    assert not tone_fits("steady", flat * 0, still)


def test_several_channels_and_short_sounds_are_taken():
    assert listen(np.zeros((2, 100), dtype=np.float32), SAMPLE_RATE).peak == 0.0
    assert isinstance(listen(np.zeros(0, dtype=np.float32), SAMPLE_RATE), Heard)


def test_the_documents_list_every_word() -> None:
    text = (Path(__file__).parents[2] / "docs" / "demo.md").read_text(encoding="utf-8")
    listed = set(re.findall("[a-z]+", text.split("### Its words")[1].split("\n## ")[0].lower()))
    assert not {word.lower() for word in vocabulary()} - listed
