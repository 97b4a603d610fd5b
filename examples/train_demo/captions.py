"""Captioned scenes by the thousand, made by all cores; imports little, since each core starts a Python of its own."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from yellowsound.demo.world import (
    MOTIONS,
    Chance,
    Prompt,
    Scene,
    sample_chance,
    sample_image_prompt,
    sample_prompt,
    sample_scene,
)

WORDINGS = 2  # captions of each kind for one clip
CIRCLING = ("clockwise", "counterclockwise")
MORE_CIRCLING = 0.2  # how often a clip must circle, which is the hardest motion, beside those that do by chance


@dataclass
class Captioned:
    """Scenes with their captions; prompts of clip i are at i * WORDINGS and on."""

    scenes: list[Scene]
    chances: list[Chance]
    prompts: list[Prompt]
    image_prompts: list[Prompt]


def captioned(number: int, seed: int) -> Captioned:
    """``number`` training scenes with their wordings, made by all cores."""
    workers = min(os.cpu_count() or 1, 12) if number >= 1000 else 1
    sizes = [number // workers + (i < number % workers) for i in range(workers)]
    if workers == 1:
        return _captioned(number, seed)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        pieces = list(pool.map(_captioned, sizes, [seed * 1000 + i for i in range(workers)]))
    joined = ([x for piece in pieces for x in getattr(piece, name)] for name in Captioned.__dataclass_fields__)
    return Captioned(*joined)


def _captioned(number: int, seed: int) -> Captioned:
    rng = np.random.default_rng([seed, 1])
    scenes = [_scene(rng) for _ in range(number)]
    chances = [sample_chance(rng) for _ in range(number)]
    prompts = [sample_prompt(rng, scene) for scene in scenes for _ in range(WORDINGS)]
    image_prompts = [_image_prompt(rng, scene) for scene in scenes for _ in range(WORDINGS)]
    return Captioned(scenes, chances, prompts, image_prompts)


def _scene(rng: np.random.Generator) -> Scene:
    """A scene of the training part; 40 of 100 circle, the only motion along both axes at once."""
    wanted = CIRCLING if rng.random() < MORE_CIRCLING else MOTIONS
    while True:
        scene = sample_scene(rng, held_out=False)
        if scene.motion in wanted:
            return scene


def _image_prompt(rng: np.random.Generator, scene: Scene) -> Prompt:
    """A wording beside a picture; 75 of 100 say only what "it" does, so that the picture must tell the shape."""
    first, second = (sample_image_prompt(rng, scene) for _ in range(2))
    return first if first.text.startswith("it ") else second
