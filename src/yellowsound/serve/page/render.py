"""Templates to answers: one Jinja environment, and the headers that every page carries."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from yellowsound.serve.page import words
from yellowsound.serve.page.static import address
from yellowsound.serve.service import service_of

# No inline script, style or handler, nothing from elsewhere; blob: shows a picture before it is sent.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


@cache
def environment() -> Environment:
    """The templates of this package; an unknown name is an error, not an empty text."""
    found = Environment(
        loader=PackageLoader("yellowsound.serve.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["static"] = address
    found.filters.update(
        seconds=words.seconds,
        size=words.size,
        moment=words.moment,
        clock=words.clock,
        short=words.short,
        number=words.number,
    )
    return found


def fragment(template: str, **context: Any) -> str:
    """A part of a page as HTML."""
    return environment().get_template(template).render(**context)


def page(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A whole page; templates always find ``here`` (the path) and ``with_key`` (whether there is a key to forget)."""
    service = service_of(request)
    html = fragment(template, here=request.url.path, with_key=not service.auth.is_open, **context)
    return HTMLResponse(html, status, headers=HEADERS)


def part(html: str, status: int = 200) -> HTMLResponse:
    """A fragment as an answer to htmx."""
    return HTMLResponse(html, status, headers=HEADERS)


def is_htmx(request: Request) -> bool:
    """Whether the answer goes into a page that is already there."""
    return request.headers.get("hx-request") == "true"
