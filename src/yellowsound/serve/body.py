"""Request bodies: multipart, JSON and urlencoded become one dictionary of raw values, within limits.

Values stay what they were (text, JSON values, ``Upload``); bracketed names such as ``extra_params[sample_audio]`` and
``name[]`` become dictionaries and lists, because the official Python client sends nested values that way.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from yellowsound.serve.errors import ApiError
from yellowsound.serve.settings import MEBIBYTE, Limits

_BRACKETS = re.compile(r"([^\[\]]+)\[([^\[\]]*)\]")


MAX_ESCAPES = 2_000_000  # decoding 20 million takes a minute; a 24 MiB picture as base64 has under one million


@dataclass(frozen=True, slots=True)
class Upload:
    """A file part; its name is kept for nothing but messages."""

    filename: str
    data: bytes


async def read_body(request: Request, limits: Limits) -> dict[str, Any]:
    """The raw fields of a create request. Raises ApiError 400, 413 or 415."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "multipart/form-data":
        return await _multipart(request, limits)
    if content_type == "application/json" or content_type.endswith("+json"):
        return await run_in_threadpool(_json, await request.body(), limits)
    if content_type == "application/x-www-form-urlencoded":
        return await run_in_threadpool(_urlencoded, await request.body(), limits)
    if not content_type and not await request.body():
        return {}
    raise ApiError(
        415,
        "unsupported_media_type",
        f"content-type {content_type or '(none)'} is not read here; send multipart/form-data, application/json"
        " or application/x-www-form-urlencoded",
    )


async def _multipart(request: Request, limits: Limits) -> dict[str, Any]:
    pairs: list[tuple[str, Any]] = []
    try:
        async with request.form(
            max_files=limits.fields, max_fields=limits.fields, max_part_size=limits.text_part_bytes
        ) as form:
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    pairs.append((name, await _upload(name, value, limits)))
                else:
                    pairs.append((name, value))
    except HTTPException as error:
        _refuse_multipart(str(error.detail), limits)
    return _nest(pairs)


def _refuse_multipart(detail: str, limits: Limits) -> NoReturn:
    if "exceeded maximum size" in detail:
        limit = f"{limits.text_part_bytes / MEBIBYTE:g} MiB"
        raise ApiError(413, "payload_too_large", f"a text part is larger than {limit}, the limit of one text part")
    raise ApiError(400, "invalid_multipart", f"the multipart body cannot be read: {detail}")


async def _upload(name: str, part: UploadFile, limits: Limits) -> Upload:
    data = await part.read(limits.picture_bytes + 1)
    if len(data) > limits.picture_bytes:
        limit = f"{limits.picture_bytes / MEBIBYTE:g} MiB"
        raise ApiError(413, "payload_too_large", f"{name}: the file is larger than {limit}, the limit of one", name)
    return Upload(part.filename or "", data)


def _json(body: bytes, limits: Limits) -> dict[str, Any]:
    value = parse_json(body, limits)
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the JSON body must be an object, not {type(value).__name__}")
    for wrapper in ("extra_body", "extra_json"):
        if isinstance(value.get(wrapper), dict):
            value = {**value.pop(wrapper), **value}
    return value


def parse_json(body: bytes | str, limits: Limits) -> Any:
    """JSON with exact integers, no NaN, and bounded depth. Raises ApiError 400."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {str(error)[:200]}") from None
    if _depth(value) > limits.json_depth:
        raise ApiError(400, "invalid_json", f"the JSON body is nested deeper than {limits.json_depth} levels")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return depth


def _urlencoded(body: bytes, limits: Limits) -> dict[str, Any]:
    if body.count(b"%") > MAX_ESCAPES:
        raise ApiError(413, "payload_too_large", "the urlencoded body has too many escapes; send multipart/form-data")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=limits.fields)
    except ValueError as error:
        raise ApiError(400, "invalid_form", f"the urlencoded body cannot be read: {error}") from None
    return _nest([(name, value) for name, value in pairs])


def _nest(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Fold bracketed names; of repeated plain fields the last wins, of repeated files all are kept."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        match = _BRACKETS.fullmatch(name)
        if match is None:
            repeated = isinstance(value, Upload) and isinstance(fields.get(name), (Upload, list))
            fields[name] = _append(fields[name], value) if repeated else value
            continue
        outer, inner = match.groups()
        if inner == "":
            fields[outer] = _append(fields.get(outer, []), value)
        else:
            known = fields.get(outer)
            fields[outer] = {**(known if isinstance(known, dict) else {}), inner: value}
    return fields


def _append(known: Any, value: Any) -> list[Any]:
    return [*(known if isinstance(known, list) else [known]), value]
