"""Preview strips and the linear map they are coloured with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from yellowsound.stages.preview import PreviewMap, fit_rgb_map, strip_of


def latents(seed: int, frames: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(frames, 4, 6, 16)).astype(np.float32)


def decoded_by(matrix: np.ndarray, video: np.ndarray) -> np.ndarray:
    """Pixels of a VAE that is exactly linear, 4 (T - 1) + 1 frames, eight times as large."""
    with_one = np.concatenate([video, np.ones((*video.shape[:-1], 1), np.float32)], axis=-1)
    small = ((with_one @ matrix).clip(0, 1) * 255).round().astype(np.uint8)
    large = small.repeat(8, axis=1).repeat(8, axis=2)
    return np.concatenate([large[:1], *(np.repeat(f[None], 4, axis=0) for f in large[1:])])


def test_a_linear_decoder_is_recovered() -> None:
    matrix = np.random.default_rng(1).normal(size=(17, 3)).astype(np.float32) * 0.02
    matrix[-1] = 0.5
    found = fit_rgb_map(latents(2), decoded_by(matrix, latents(2)))
    assert found.shape == (17, 3) and found.dtype == np.float32
    assert np.abs(found - matrix).max() < 2e-3


def test_strips_pick_frames_evenly_and_stay_small() -> None:
    strip, count = strip_of(latents(3, frames=31), None)
    assert count == 4 and strip.shape == (4, 24, 3) and strip.dtype == np.uint8
    assert np.array_equal(strip[..., 0], strip[..., 1])  # grey until a map is known
    assert strip_of(latents(3, frames=1), None)[1] == 1


def test_not_a_number_is_shown_as_black() -> None:
    assert strip_of(np.full((2, 4, 6, 16), np.nan, np.float32), None)[0].max() == 0


def test_the_map_is_kept_and_a_damaged_one_is_forgotten(tmp_path: Path) -> None:
    frames = decoded_by(np.full((17, 3), 0.01, np.float32), latents(4))
    first = PreviewMap("vae", tmp_path)
    first.learn(latents(4), frames)
    kept = PreviewMap("vae", tmp_path).value
    assert kept is not None and np.array_equal(kept, first.value)
    (tmp_path / "vae.npy").write_bytes(b"damage")
    assert PreviewMap("vae", tmp_path).value is None


@pytest.mark.parametrize(
    "kept",
    [
        np.zeros(3),
        np.zeros((17, 3)),
        np.zeros((17, 4), np.float32),
        np.zeros((1, 17, 3), np.float32),
        np.full((17, 3), np.nan, np.float32),
        np.zeros((12, 3), np.float32),
    ],
    ids=["one row", "float64", "four colours", "three axes", "not finite", "other channels"],
)
def test_a_map_of_another_kind_is_replaced(tmp_path: Path, kept: np.ndarray) -> None:
    np.save(tmp_path / "vae.npy", kept)
    found = PreviewMap("vae", tmp_path)
    grey, _ = strip_of(latents(6), found.value)
    assert np.array_equal(grey, strip_of(latents(6), None)[0])
    found.learn(latents(6), decoded_by(np.full((17, 3), 0.01, np.float32), latents(6)))
    again = PreviewMap("vae", tmp_path).value
    assert again is not None and again.shape == (17, 3) and np.array_equal(again, found.value)


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"PK\x05\x06" + bytes(18)], ids=["empty", "cut", "archive"])
def test_what_numpy_cannot_read_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "vae.npy").write_bytes(damage)
    assert PreviewMap("vae", tmp_path).value is None


def test_a_folder_that_cannot_be_written_is_no_error() -> None:
    keeper = PreviewMap("vae", Path("/proc/nowhere"))
    keeper.learn(latents(5), decoded_by(np.full((17, 3), 0.01, np.float32), latents(5)))
    assert keeper.value is not None
