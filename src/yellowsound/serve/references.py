"""The picture of a request: found in the field, fetched or decoded, and proved to be one before a job exists."""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
import sys
from typing import Any
from urllib.parse import unquote_to_bytes

from yellowsound.request import RequestError
from yellowsound.serve.body import Upload
from yellowsound.serve.errors import ApiError
from yellowsound.serve.remote import fetch_picture
from yellowsound.serve.settings import MEBIBYTE, Settings


def picture_bytes(sent: Any, settings: Settings) -> bytes:
    """The bytes of the picture that a field holds: a file, a data URL, a URL, or ``{"image_url": …}``.

    May block on the network when URLs are allowed. Raises RequestError, ApiError 413.
    """
    if isinstance(sent, Upload):
        return sent.data
    if isinstance(sent, str):
        text = sent.strip()
        return picture_bytes(_object(text), settings) if text.startswith("{") else _from_url(text, settings)
    if isinstance(sent, dict):
        return _from_url(_image_url(sent), settings)
    raise RequestError("image", sent, 'must be a file, a data URL or {"image_url": …}')


def check_picture(data: bytes, settings: Settings) -> list[str]:
    """Decode the picture in a process of its own, with a memory and a time limit; returns warnings.

    Raises RequestError: not a picture, damaged, too many pixels, too slow.
    """
    limits = settings.limits
    command = [sys.executable, "-m", "yellowsound.serve.picture_check", str(limits.picture_pixels)]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=limits.picture_check_seconds)
    except subprocess.TimeoutExpired:
        raise RequestError(
            "image", "picture", f"takes longer than {limits.picture_check_seconds:g} s to open"
        ) from None
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise RequestError("image", "picture", "cannot be opened") from None
    if "problem" in report:
        raise RequestError("image", "picture", report["problem"])
    return [str(warning) for warning in report["warnings"]]


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError("image", text, "is neither a URL nor a JSON object") from None
    if not isinstance(value, dict):
        raise RequestError("image", text, "must be a JSON object with image_url")
    return value


def _image_url(value: dict[str, Any]) -> str:
    if value.get("file_id"):
        raise ApiError(400, "unsupported_parameter", "file_id: this server keeps no files; send the picture itself",
                       "input_reference")  # fmt: skip
    url = value.get("image_url", value.get("url"))
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str):
        raise RequestError("image", value, "must hold image_url with a data URL")
    return url.strip()


def _from_url(url: str, settings: Settings) -> bytes:
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        return _from_data_url(url, settings)
    if scheme not in ("http", "https"):
        raise RequestError("image", url, "must be a file or a data URL")
    if not settings.remote.enabled:
        raise RequestError("image", "the picture's URL", "this server fetches no URLs: send the file or a data URL")
    return fetch_picture(url, settings.remote)


def _from_data_url(url: str, settings: Settings) -> bytes:
    limits = settings.limits
    if len(url) > limits.text_part_bytes:
        limit = f"{limits.text_part_bytes / MEBIBYTE:g} MiB"
        raise ApiError(413, "payload_too_large", f"the data URL is larger than {limit}, the limit", "input_reference")
    head, comma, body = url.partition(",")
    if not comma:
        raise RequestError("image", url, "is a data URL without data")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode("".join(unquote_to_bytes(body).decode("ascii").split()), validate=True)
    except (binascii.Error, UnicodeDecodeError):
        raise RequestError("image", url, "is a data URL whose base64 is broken") from None
