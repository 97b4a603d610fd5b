"""Shapes are told apart by overlap, also where the picture is blurred or its edges are ragged."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from yellowsound.demo.outline import overlap, shape_of

SHAPES = ("ball", "square", "triangle")


def drawn(shape: str, size: float, x: float = 60.3, y: float = 50.6) -> NDArray[np.bool_]:
    """The world's own outline of that size: signed distances as the renderer has them."""
    rows, columns = np.mgrid[:100, :120] + 0.5
    across, down = np.abs(columns - x), rows - y
    distance = {
        "ball": np.hypot(across, down) - size,
        "square": np.maximum(across, np.abs(down)) - 0.88 * size,
        "triangle": np.maximum(down - 0.8 * size, (1.9 * across - 1.1 * (down + 1.1 * size)) / 2.195),
    }
    return distance[shape] < 0


def ragged(mask: NDArray[np.bool_], share: float, seed: int) -> NDArray[np.bool_]:
    """A quarter of the pixels on both sides of the edge turned over."""
    padded = np.pad(mask, 1)
    near = [np.roll(padded, shift, axis)[1:-1, 1:-1] for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1))]
    edge = np.any([n != mask for n in near], axis=0)
    flipped: NDArray[np.bool_] = mask ^ (edge & (np.random.default_rng(seed).random(mask.shape) < share))
    return flipped


@pytest.mark.parametrize("size", [8, 13, 18, 27])
@pytest.mark.parametrize("shape", SHAPES)
def test_ideal_shapes_overlap_themselves(shape: str, size: float) -> None:
    mask = drawn(shape, size)
    assert overlap(mask, shape) > 0.94
    assert max(overlap(mask, other) for other in SHAPES if other != shape) < 0.9
    assert shape_of(mask[None]) == shape


@pytest.mark.parametrize("size", [10, 13, 18, 27])
@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_edges_do_not_change_the_shape(shape: str, size: float) -> None:
    masks = np.stack([ragged(drawn(shape, size, 40 + seed), 0.25, seed) for seed in range(9)])
    assert shape_of(masks) == shape


def test_without_a_mask_there_is_no_shape() -> None:
    assert shape_of(np.zeros((0, 4, 4), dtype=bool)) == ""
