"""Outline: which of the world's shapes an object is, by its overlap with the ideal shape of the same area and centre.

How much of its bounding box an object fills tells the same of clean pictures, but one ragged pixel at an edge widens
the box: squares that overlap the ideal square by 92 % and the ideal disc by 85 % were taken for discs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# For size 1 with the centroid at the origin, y downwards as in pictures: area, and where the inside is.
_IDEALS: dict[str, tuple[float, Callable[[Array, Array], Mask]]] = {
    "ball": (np.pi, lambda x, y: np.hypot(x, y) < 1),
    "square": (1.76**2, lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.88),
    # apex 1.1 above the middle, base 2.2 wide at 0.8 below it; the centroid is a third of the height over the base
    "triangle": (2.09, lambda x, y: (y < 1.9 / 3) & (1.9 * np.abs(x) < 1.1 * (y + 2 * 1.9 / 3))),
}


def shape_of(masks: Mask) -> str:
    """The shape that masks (N, H, W) overlap most, by the median over them; "" without a mask. None may be empty."""
    if not len(masks):
        return ""
    overlaps = {shape: float(np.median([overlap(mask, shape) for mask in masks])) for shape in _IDEALS}
    return max(overlaps, key=lambda shape: overlaps[shape])


def overlap(mask: Mask, shape: str) -> float:
    """Intersection over union of ``mask`` (H, W) with the ideal ``shape`` of its area around its centroid."""
    unit_area, is_inside = _IDEALS[shape]
    rows, columns = np.nonzero(mask)
    size = float(np.sqrt(len(rows) / unit_area))
    y, x = np.mgrid[: mask.shape[0], : mask.shape[1]].astype(float)
    ideal = is_inside((x - columns.mean()) / size, (y - rows.mean()) / size)
    return float((mask & ideal).sum() / (mask | ideal).sum())
