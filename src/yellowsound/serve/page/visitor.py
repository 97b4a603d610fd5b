"""Who looks at the page: with keys set, only somebody whose session cookie proves one; and errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from html import escape
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from yellowsound.request import RequestError
from yellowsound.serve.errors import ApiError, from_request_error
from yellowsound.serve.page.render import HEADERS, is_htmx, page, part


class PageRoute(APIRoute):
    """A route for people: asks for the key where one is needed, and shows refusals as HTML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            if request.state.owner is None:
                return _ask_for_key(request)
            try:
                return await handle(request)
            except (ApiError, RequestError) as error:
                return refusal(request, error)
            except RequestValidationError as error:
                first = error.errors()[0]
                return refusal(request, ApiError(400, "invalid_value", f"{first['loc'][-1]}: {first['msg']}"))

        return guarded


def refusal(request: Request, error: ApiError | RequestError) -> Response:
    """A refusal as a line for the page that is there, or as a page of its own."""
    shown = error if isinstance(error, ApiError) else from_request_error(error)
    if is_htmx(request):
        return part(escape(shown.message), shown.status)
    return page(request, "error.html", shown.status, message=shown.message, code=shown.status)


def _ask_for_key(request: Request) -> Response:
    if is_htmx(request):
        return Response(status_code=401, headers={**HEADERS, "HX-Redirect": "/key"})
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = "/key" if path == "/" or request.method != "GET" else f"/key?then={quote(path, safe='')}"
    return RedirectResponse(target, 303, headers=HEADERS)
