"""The small world that the demo checkpoint knows: what a clip can show, how it moves and sounds, how people say it.

Pure data and numpy. Knows nothing of networks or pixels; ``examples/train_demo/render.py`` draws a scene and
``judge.py`` recognises one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

WIDTH, HEIGHT, NUM_FRAMES, FRAME_RATE, SAMPLE_RATE = 192, 128, 49, 24.0, 44_100
DURATION_SECONDS = NUM_FRAMES / FRAME_RATE

Shape = Literal["ball", "square", "triangle"]
Sound = Literal["natural", "silent", "rising", "falling", "steady"]

NOUNS: dict[str, tuple[str, ...]] = {
    "ball": ("ball", "circle", "disc"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "pyramid"),
}
SHAPES = tuple(NOUNS)
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (230, 40, 40), "green": (45, 210, 65), "blue": (50, 100, 245),
    "yellow": (245, 220, 50), "white": (248, 248, 248),
}  # fmt: skip
FLOORS: dict[str, tuple[int, int, int]] = {
    "blue": (28, 42, 115), "grey": (98, 98, 98), "brown": (108, 68, 38),
}  # fmt: skip
WALLS: dict[str, tuple[int, int, int]] = {"dark": (18, 18, 26), "light": (160, 170, 185)}
MOTIONS = ("bounce", "left", "right", "clockwise", "counterclockwise", "grow", "shrink")
OFTEN = (*MOTIONS, "bounce")  # what has contacts and onsets to be judged comes twice as often
COUNTED = ("bounce",)
COUNTS = {1: "once", 2: "twice", 3: "three times"}
USUAL_COUNT = 3  # what a caption without a number means

# Combinations of shape, colour and motion that no training clip shows; the test prompts are made of them.
HELD_OUT = frozenset(
    combination
    for index, combination in enumerate(product(SHAPES, COLOURS, MOTIONS))
    if (index // 7 * 3 + index) % 7 == 3
)


@dataclass(frozen=True, slots=True)
class Scene:
    """One clip of the world, without the chance in it (places, sizes, phases: see ``Chance``)."""

    shape: str
    colour: str
    floor: str
    wall: str
    motion: str
    count: int
    sound: Sound

    @property
    def voice(self) -> str:
        """What is heard: knock, rising, falling, steady or silent."""
        if self.sound != "natural":
            return self.sound
        return {"bounce": "knock", "grow": "rising", "shrink": "falling"}.get(self.motion, "steady")


@dataclass(frozen=True, slots=True)
class Chance:
    """The parts of a clip that no caption names; all in 0..1, meaning depends on the motion."""

    x: float
    y: float
    size: float
    phase: float
    pitch: float
    noise_seed: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A caption and the scene that it asks for; ``floor_named`` says whether the floor may be judged."""

    text: str
    scene: Scene
    floor_named: bool


def start_phase(chance: Chance) -> float:
    """Where in its first period a bounce starts: 0.44 to 0.56, so that every period has its contact inside."""
    return 0.44 + 0.12 * chance.phase


def sample_scene(rng: np.random.Generator, *, held_out: bool) -> Scene:
    """A random scene from the training part of the world or, with ``held_out``, from the part kept for the test."""
    while True:
        shape, colour, motion = (str(rng.choice(names)) for names in (SHAPES, tuple(COLOURS), OFTEN))
        floor = str(rng.choice(tuple(FLOORS)))
        if ((shape, colour, motion) in HELD_OUT) == held_out and floor != colour:
            break
    count = int(rng.integers(1, 4)) if motion in COUNTED else 0
    return Scene(shape, colour, floor, str(rng.choice(tuple(WALLS))), motion, count, _sample_sound(rng, motion))


def sample_chance(rng: np.random.Generator) -> Chance:
    x, y, size, phase, pitch = (float(v) for v in rng.random(5))
    return Chance(x, y, size, phase, pitch, int(rng.integers(2**31)))


def sample_prompt(rng: np.random.Generator, scene: Scene) -> Prompt:
    """One of the wordings for ``scene``; what a wording leaves out is left to the model."""
    noun = str(rng.choice(NOUNS[scene.shape]))
    floor_named = bool(rng.random() < 0.75)
    wall_named = bool(rng.random() < 0.3)
    action, adjective = _action(rng, scene)
    where = f" on a {scene.floor} floor" if floor_named else ""
    room = f" in a {scene.wall} room" if wall_named else ""
    sound = _sound_words(rng, scene)
    pattern = int(rng.integers(4))
    if pattern == 0 and floor_named:
        text = f"on a {scene.floor} floor{room}, a {scene.colour} {noun} {action}{sound}"
    elif pattern == 1 and adjective and scene.count in (0, USUAL_COUNT):
        text = f"a {adjective} {scene.colour} {noun}{where}{room}{sound}"
    elif pattern == 2:
        text = f"a {scene.colour} {noun}{where}{room} {action}{sound}"
    else:
        text = f"a {scene.colour} {noun} {action}{where}{room}{sound}"
    return Prompt(text[0].upper() + text[1:] + "." if rng.random() < 0.2 else text, scene, floor_named)


def sample_image_prompt(rng: np.random.Generator, scene: Scene) -> Prompt:
    """A wording for a clip that starts from a picture: what the picture shows need not be said."""
    if rng.random() < 0.5:
        return sample_prompt(rng, scene)
    return Prompt(f"it {_action(rng, scene)[0]}{_sound_words(rng, scene)}", scene, False)


def held_out_prompts(number: int = 100, seed: int = 20260) -> list[Prompt]:
    """The frozen test prompts: motions as in OFTEN, every scene a combination that training never shows."""
    rng = np.random.default_rng(seed)
    prompts: list[Prompt] = []
    while len(prompts) < number:
        scene = sample_scene(rng, held_out=True)
        if scene.motion == OFTEN[len(prompts) % len(OFTEN)]:
            prompts.append(sample_prompt(rng, scene))
    return prompts


def vocabulary() -> list[str]:
    """Every word that a caption can hold, for the tokenizers."""
    rng = np.random.default_rng(7)
    words: set[str] = set()
    for _ in range(4000):
        text = sample_image_prompt(rng, sample_scene(rng, held_out=False)).text
        words.update(text.replace(",", " ").replace(".", " ").split())
    return sorted(words)


def _sample_sound(rng: np.random.Generator, motion: str) -> Sound:
    if rng.random() < 0.1:
        return "silent"
    if motion in ("left", "right"):
        choices: tuple[Sound, ...] = ("natural", "rising", "falling", "steady")
        return choices[int(rng.integers(4))]
    return "natural"


def _action(rng: np.random.Generator, scene: Scene) -> tuple[str, str]:
    """A verb phrase, and the participle that can stand before the noun ("" where none fits)."""
    times = COUNTS.get(scene.count, "")
    if scene.count == USUAL_COUNT and rng.random() < 0.5:
        times = ""
    spoken = f" {times}" if times else ""
    ing = bool(rng.random() < 0.5)
    if scene.motion == "bounce":
        return ("bouncing" if ing else "bounces") + spoken, "bouncing"
    if scene.motion in ("left", "right"):
        verb = str(rng.choice(["sliding", "moving"] if ing else ["slides", "moves"]))
        return f"{verb} to the {scene.motion}", ""
    if scene.motion in ("clockwise", "counterclockwise"):
        verb = str(rng.choice(["circling", "moving in a circle"] if ing else ["circles", "moves in a circle"]))
        return f"{verb} {scene.motion}", ""
    participle, present = {"grow": ("growing", "grows"), "shrink": ("shrinking", "shrinks")}[scene.motion]
    return participle if ing else present, participle


def _sound_words(rng: np.random.Generator, scene: Scene) -> str:
    """How the sound is said: the usual one may stay unsaid, any other must be said."""
    if scene.sound == "silent":
        return str(rng.choice([" in silence", " silently", " without a sound"]))
    if scene.sound == "natural" and rng.random() < 0.6:
        return ""
    said = {
        "knock": [" with a knock at each bounce", " and knocks"],
        "rising": [" with a rising tone"],
        "falling": [" with a falling tone"],
        "steady": [" with a steady tone", " and hums"],
    }
    return str(rng.choice(said[scene.voice]))
