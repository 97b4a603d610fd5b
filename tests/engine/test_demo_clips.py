"""The packaged demo makes what it is asked for: clips of combinations that training never showed, judged."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from yellowsound.demo import folder
from yellowsound.demo.judge import judge
from yellowsound.demo.world import COUNTED, HELD_OUT, Chance, Prompt, held_out_prompts
from yellowsound.engine import Engine
from yellowsound.request import ClipRequest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train_demo"))
import render

SEED = 1
CHOSEN = (0, 2, 4, 5)  # a bounce with knocks, a slide with a rising tone, something that circles, and that grows


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    torch.set_num_threads(1)
    engine = Engine.load(folder("piflow", cache=tmp_path_factory.mktemp("demo")), device="cpu")
    yield engine
    engine.close()


def prompt_of(number: int) -> Prompt:
    return held_out_prompts()[number]


@pytest.mark.slow
@pytest.mark.parametrize("number", CHOSEN)
def test_a_clip_shows_and_sounds_as_asked(demo: Engine, number: int) -> None:
    prompt = prompt_of(number)
    clip = demo.generate(ClipRequest(prompt=prompt.text, seed=SEED))
    assert clip.waveform is not None and clip.frames.shape == (49, 128, 192, 3)
    answers = judge(prompt, clip.frames, clip.waveform, clip.sample_rate)
    heard = {"count", "onsets"} if prompt.scene.motion in COUNTED else {"tone"}
    assert answers.keys() >= {"colour", "shape", "motion", "level", "floor"} | heard
    assert all(answers.values()), (prompt.text, answers)
    wrong = prompt_of(CHOSEN[CHOSEN.index(number) - 1])
    assert not judge(wrong, clip.frames, clip.waveform, clip.sample_rate)["motion"]
    assert float(np.abs(np.diff(clip.frames.astype(np.int16), axis=0)).mean()) > 0.05


@pytest.mark.slow
def test_a_clip_from_a_picture_keeps_what_the_picture_shows(demo: Engine) -> None:
    said = Prompt("it bouncing twice and knocks", prompt_of(7).scene, floor_named=True)
    drawn = render.draw(render.batch_of([said.scene], [Chance(0.5, 0.5, 0.5, 0.5, 0.5, 0)]), torch.zeros(1))[0, :, 0]
    pixels = ((drawn / 2 + 0.5) * 255).round().byte().permute(1, 2, 0).numpy()
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "png")
    clip = demo.generate(ClipRequest(prompt=said.text, image=png.getvalue(), seed=SEED))
    assert clip.waveform is not None
    answers = judge(said, clip.frames, clip.waveform, clip.sample_rate)
    assert answers.keys() >= {"colour", "shape", "motion", "floor", "onsets"} and all(answers.values()), answers
    assert np.abs(clip.frames[0].astype(int) - pixels).mean() < 4


def test_the_chosen_prompts_are_kept_from_training() -> None:
    for number in CHOSEN:
        scene = prompt_of(number).scene
        assert (scene.shape, scene.colour, scene.motion) in HELD_OUT and scene.voice != "silent"
        assert prompt_of(number).floor_named
