"""Style sheet, scripts and icon: files of this package, named by content so that browsers may keep them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from yellowsound.serve.errors import ApiError

router = APIRouter()
_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
NAMES = (
    "page.css", "create.js", "compare.js", "gallery.js", "icon.svg", "vendor/htmx.min.js", "vendor/hx-sse.min.js",
)  # fmt: skip


@cache
def content(name: str) -> bytes:
    """The bytes of one static file of ``NAMES``."""
    return files("yellowsound.serve.page").joinpath("static", *name.split("/")).read_bytes()


@cache
def address(name: str) -> str:
    """Where a page links to ``name``; another content has another address."""
    return f"/static/{name}?v={hashlib.sha256(content(name)).hexdigest()[:12]}"


@router.get("/static/{name:path}")
def read_static(name: str) -> Response:
    """One file; only the names of this package are known."""
    if name not in NAMES:
        raise ApiError(404, "not_found", "There is nothing at this address.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content(name), media_type=_KINDS[name.rpartition(".")[2]], headers=headers)
