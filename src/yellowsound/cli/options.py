"""Options that several commands read in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from yellowsound.request import RequestError, frames_for_seconds, parse_size

if TYPE_CHECKING:
    from cyclopts import Token


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """Digits as a whole number; cyclopts itself would cut 1.5 down to 1 without a word."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]


def frame_count(frames: int | None, seconds: float | None) -> int | None:
    """--frames, or those that last --seconds; None where neither was given. Raises RequestError for both."""
    if frames is not None and seconds is not None:
        raise RequestError("seconds", seconds, f"cannot be given together with --frames {frames}")
    return frames if seconds is None else frames_for_seconds(seconds)


def sides(size: str | None) -> dict[str, int]:
    """--size as the request's fields ``width`` and ``height``; none where it was not given. Raises RequestError."""
    if size is None:
        return {}
    width, height = parse_size(size)
    return {"width": width, "height": height}


def not_negative(name: str, value: float) -> float:
    """``value`` if it is 0 or more and finite. Raises RequestError."""
    if not 0 <= value < math.inf:
        raise RequestError(name, value, "must be 0 or more, and finite", 0)
    return value


def lines_of(name: str, file: Path) -> list[str]:
    """The lines of a text file that option ``name`` gives. Raises RequestError for other encodings, OSError."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise RequestError(name, str(file), f"is no UTF-8 text: see its byte {error.start}") from None
