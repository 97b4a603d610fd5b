"""Stage t: the two text encoders learn what captions mean, so that the transformer need not.

The second encoder's pooled state becomes a code with one direction for each thing a caption can say (a shape, a colour,
a floor, ...) or leave unsaid; the first encoder's last token gets the same code in its first channels, while its other
states go on telling words apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from latents import NEGATIVE, TextEncoders
from progress import Budget, Log, clip, learning_rate, optimizer, prepare, set_rate
from torch import Tensor

from yellowsound.demo.world import (
    COLOURS,
    COUNTS,
    FLOORS,
    MOTIONS,
    SHAPES,
    WALLS,
    Prompt,
    sample_image_prompt,
    sample_scene,
)

PEAK_RATE, LEVEL = 3e-3, 2.0
SOUNDS = ("silent", "knock", "rising", "falling", "steady")
FIELDS: tuple[tuple[str, ...], ...] = (
    SHAPES, tuple(COLOURS), tuple(FLOORS), tuple(WALLS), MOTIONS, tuple(map(str, COUNTS)), SOUNDS,
)  # fmt: skip
CODE_WIDTH = sum(len(field) + 1 for field in FIELDS)


def meaning(prompt: Prompt) -> list[int]:
    """For each of FIELDS the index of what ``prompt`` says, or the field's length where it says nothing."""
    scene, text = prompt.scene, prompt.text.lower()
    named = not re.match(r"it\b", text)
    wall = scene.wall if f"{scene.wall} room" in text else ""
    floor = scene.floor if prompt.floor_named else ""
    said = (
        scene.shape if named else "", scene.colour if named else "", floor, wall,
        scene.motion, str(scene.count), scene.voice,
    )  # fmt: skip
    return [f.index(word) if word in f else len(f) for f, word in zip(FIELDS, said, strict=True)]


def codes(meanings: list[list[int]]) -> Tensor:
    """(N, CODE_WIDTH): LEVEL at the place of each thing said or left unsaid, else 0."""
    starts = np.cumsum([0] + [len(f) + 1 for f in FIELDS[:-1]])
    code = torch.zeros(len(meanings), CODE_WIDTH)
    return code.scatter_(1, torch.tensor(meanings) + torch.tensor(starts), LEVEL)


UNSAID = [len(field) for field in FIELDS]


def train(work: Path, seconds: float, device: str, *, batch: int = 64, seed: int = 11) -> float:
    """Train both for ``seconds`` and write them back; returns the share of new captions that are understood whole."""
    prepare(device)
    log, encoders, budget = Log(work / "logs", "text"), TextEncoders(work, device), Budget(seconds)
    models: tuple[Any, Any] = (encoders.qwen.train(), encoders.clip.train())
    for model in models:
        model.requires_grad_(True)
    optimisers = [optimizer(m, PEAK_RATE, decay=0.0) for m in models]
    rng, count = np.random.default_rng(seed), 0
    while budget.goes_on():
        texts, goal = captions(rng, batch)
        for optimiser in optimisers:
            set_rate(optimiser, learning_rate(budget.part, PEAK_RATE))
            optimiser.zero_grad()
        losses = _losses(encoders, texts, goal.to(device), qwen_rows=batch // 4)
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        for model, optimiser in zip(models, optimisers, strict=True):
            clip(model)
            optimiser.step()
        count += 1
        if log.is_due() or count == 1:
            log.write(step=count, tokens=losses[0], pooled=losses[1])
    for model, name in zip(models, ("text_encoder", "text_encoder_2"), strict=True):
        model.to(torch.bfloat16).save_pretrained(work / "common" / name)
    right = understood(TextEncoders(work, device), np.random.default_rng(seed + 1))
    log.write(step=count, understood=right, done=True)
    return right


def captions(rng: np.random.Generator, number: int) -> tuple[list[str], Tensor]:
    """Captions of training scenes and their codes; one in sixteen is the pipeline's negative prompt or nothing."""
    prompts = [sample_image_prompt(rng, sample_scene(rng, held_out=False)) for _ in range(number)]
    texts, meanings = [p.text for p in prompts], [meaning(p) for p in prompts]
    for i in range(0, number, 16):
        texts[i], meanings[i] = (NEGATIVE, "")[i // 16 % 2], UNSAID
    return texts, codes(meanings)


def _losses(encoders: TextEncoders, texts: list[str], goal: Tensor, qwen_rows: int) -> list[Tensor]:
    pooled = encoders.pooled(texts)
    tokens, mask = encoders.tokens(texts[:qwen_rows])
    last = tokens[torch.arange(len(tokens)), mask.sum(1) - 1, :CODE_WIDTH]
    return [
        (last - goal[:qwen_rows]).square().mean(),
        (pooled[:, :CODE_WIDTH] - goal).square().mean() + pooled[:, CODE_WIDTH:].square().mean(),
    ]


@torch.no_grad()
def understood(encoders: TextEncoders, rng: np.random.Generator, number: int = 512) -> float:
    """Share of captions whose pooled code is nearest to the right one in every field."""
    texts, goal = captions(rng, number)
    widths = [len(field) + 1 for field in FIELDS]
    found = torch.split(encoders(texts).pooled[:, :CODE_WIDTH].cpu(), widths, dim=1)
    right = [a.argmax(1) == b.argmax(1) for a, b in zip(found, torch.split(goal, widths, dim=1), strict=True)]
    return float(torch.stack(right).all(0).float().mean())
