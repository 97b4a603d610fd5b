"""Raw values to numbers, switches and texts. Absent, null and empty mean: not given."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from yellowsound.request import RequestError

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
EXACT_FLOATS = 2**53


def given(raw: Mapping[str, Any], name: str) -> Any:
    """The value of ``name``, or None when it is absent, null or empty text."""
    value = raw.get(name)
    if isinstance(value, str) and not value.strip():
        return None
    return value


def integer(raw: Mapping[str, Any], name: str) -> int | None:
    """A whole number from JSON or text; ``42.0`` is 42, ``1.5`` and ``true`` are refused. Raises RequestError."""
    value = given(raw, name)
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        if _INTEGER.fullmatch(text):
            return int(text)
        value = _float(text, value, name, "must be a whole number")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_FLOATS:
        return int(value)
    raise RequestError(name, value, "must be a whole number")


def number(raw: Mapping[str, Any], name: str) -> float | None:
    """A finite number from JSON or text. Raises RequestError."""
    value = given(raw, name)
    if value is None:
        return None
    if isinstance(value, str):
        value = _float(value.strip(), value, name, "must be a number")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(name, value, "must be a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise RequestError(name, value, "must be a finite number")
    return result


def switch(raw: Mapping[str, Any], name: str) -> bool | None:
    """true or false from JSON or text. Raises RequestError."""
    value = given(raw, name)
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if isinstance(value, (str, int)) and word in _TRUE + _FALSE:
        return word in _TRUE
    raise RequestError(name, value, "must be true or false")


def text(raw: Mapping[str, Any], name: str) -> str | None:
    """Text, not empty, trimmed. Raises RequestError."""
    value = given(raw, name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError(name, value, "must be text")
    return value.strip()


def mapping(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object: as JSON, as JSON text, or from bracketed parts; absent is empty. Raises RequestError."""
    value = given(raw, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RequestError(name, value, "must be a JSON object") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(name, value, "must be a JSON object")
    return value


def _float(text_: str, shown: object, name: str, problem: str) -> float:
    if not _NUMBER.fullmatch(text_):
        raise RequestError(name, shown, problem)
    return float(text_)
