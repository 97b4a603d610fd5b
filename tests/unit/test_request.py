"""ClipRequest: what is legal, what is filled in, what is refused and with which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yellowsound.request import (
    MAX_SEED,
    ClipRequest,
    Defaults,
    RequestError,
    frames_for_seconds,
    parse_size,
    round_frames,
)

PIFLOW = Defaults(variant="piflow", num_inference_steps=10, guidance_scale=1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""), ("prompt", "   "), ("prompt", "\n\t"), ("prompt", None), ("prompt", 7), ("prompt", []),
        ("prompt", True), ("prompt", "x" * 32_001), ("prompt", "a\0b"), ("prompt", "\ud800"),
        ("negative_prompt", 3), ("num_inference_steps", 0), ("num_inference_steps", -1),
        ("num_inference_steps", 1.5), ("num_inference_steps", "abc"), ("num_inference_steps", 100_000),
        ("num_inference_steps", True), ("guidance_scale", float("nan")), ("guidance_scale", -3),
        ("guidance_scale", float("inf")), ("guidance_scale", "5"), ("frame_rate", 0), ("frame_rate", -1),
        ("frame_rate", float("nan")), ("seed", 2**63), ("seed", 2**64 - 1), ("seed", 1.5), ("seed", "7"),
        ("seed", True), ("seed", -2), ("num_frames", 0), ("num_frames", -5), ("num_frames", 510),
        ("sample_audio", "yes"), ("width", 20.0), ("width", 853), ("height", 0), ("height", 2064),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        ClipRequest(**{"prompt": "a cat", field: value})
    assert caught.value.field == field or (field in ("width", "height") and caught.value.field == "size")
    assert "\n" not in str(caught.value) or field == "prompt"


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 9007199254740993, MAX_SEED])
def test_seeds_in_range_are_kept_exactly(seed: int) -> None:
    assert ClipRequest(prompt="x", seed=seed).resolve(PIFLOW).seed == seed


@pytest.mark.parametrize("seed", [None, -1])
def test_absent_seeds_are_drawn(seed: int | None) -> None:
    drawn = {ClipRequest(prompt="x", seed=seed).resolve(PIFLOW).seed for _ in range(3)}
    assert len(drawn) == 3 and all(s is not None and 0 <= s <= MAX_SEED for s in drawn)


@pytest.mark.parametrize(
    ("asked", "made"),
    [(1, 1), (2, 1), (3, 1), (4, 5), (5, 5), (120, 121), (121, 121), (122, 121), (123, 121), (124, 125)],
)
def test_frames_are_rounded_as_the_pipeline_does(asked: int, made: int) -> None:
    request = ClipRequest(prompt="x", num_frames=asked)
    assert request.num_frames == made == round_frames(asked)
    assert (str(made) in " ".join(request.warnings)) == (asked != made)


def test_seconds() -> None:
    assert [frames_for_seconds(s) for s in (5, 5.0, 1, 2, 0.5)] == [121, 121, 25, 49, 13]
    for wrong in (0, -1, float("nan"), 60):
        with pytest.raises(RequestError, match="seconds"):
            frames_for_seconds(wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [("864x480", (864, 480)), ("1280x720", (1280, 720)), ("864X480", (864, 480)), ("864*480", (864, 480))],
)
def test_legal_sizes(text: str, size: tuple[int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("1920x1080", "1920x1072 or 1920x1088"), ("854x480", "848x480 or 864x480"), ("640x360", "640x352 or 640x368"),
        ("0x0", "16x16"), ("-32x48", "864x480"), ("99999x99999", "2048x2048"),
        ("864", "864x480"), ("\u0668x16", "864x480"),
    ],
)  # fmt: skip
def test_illegal_sizes_name_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(RequestError, match=nearest) as caught:
        parse_size(text)
    assert caught.value.field == "size" and ("16" in str(caught.value) or nearest == "864x480")


def test_defaults_fill_only_what_is_silent() -> None:
    base = ClipRequest(prompt="x", num_inference_steps=30).resolve(Defaults())
    assert (base.num_inference_steps, base.guidance_scale, base.width, base.height) == (30, 5.0, 864, 480)
    assert base.num_frames == 121 and base.duration_seconds == pytest.approx(5.041667)


def test_piflow_takes_guidance_one_only() -> None:
    with pytest.raises(RequestError, match=r"guidance_scale=5\.0.*nearest legal value: 1\.0"):
        ClipRequest(prompt="x", guidance_scale=5.0).resolve(PIFLOW)
    assert ClipRequest(prompt="x", guidance_scale=1).resolve(PIFLOW).guidance_scale == 1


def test_sound_longer_than_the_tables_is_refused() -> None:
    with pytest.raises(RequestError, match="frame_rate"):
        ClipRequest(prompt="x", num_frames=509, frame_rate=10.0).resolve(Defaults())


@pytest.mark.parametrize(
    ("defaults", "fields", "note"),
    [
        (PIFLOW, {"num_inference_steps": 50}, "distilled: 10 recommended"),
        (Defaults(), {"num_inference_steps": 10}, "base: 50 recommended"),
        (PIFLOW, {"sample_audio": False}, "no track is written"),
        (Defaults(), {"sample_audio": False}, "picture only"),
        (PIFLOW, {"negative_prompt": ""}, "negative_prompt is ignored"),
        (Defaults(), {"negative_prompt": "a", "guidance_scale": 1.0}, "negative_prompt is ignored"),
    ],
)
def test_what_does_not_suit_is_told(defaults: Defaults, fields: dict[str, Any], note: str) -> None:
    assert any(note in message for message in ClipRequest(prompt="x", **fields).resolve(defaults).warnings)


def test_nothing_is_told_of_an_ordinary_request() -> None:
    assert (
        ClipRequest(prompt="x").resolve(PIFLOW).warnings == ClipRequest(prompt="x").resolve(Defaults()).warnings == ()
    )


@given(st.integers(min_value=-10, max_value=3000), st.integers(min_value=-10, max_value=3000))
def test_named_sizes_are_themselves_legal(width: int, height: int) -> None:
    try:
        parse_size(f"{width}x{height}")
    except RequestError as error:
        for nearest in str(error.nearest).split(" or "):
            parse_size(nearest)


def test_json_never_holds_the_picture() -> None:
    shown = ClipRequest(prompt="x", image=b"secret").resolve(PIFLOW).to_json()
    assert shown["has_image"] is True and "image" not in shown
