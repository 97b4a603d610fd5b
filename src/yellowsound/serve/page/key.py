"""The key, asked for once: a session cookie then proves it. The cookie holds a signature, never the key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from yellowsound.serve.auth import COOKIE
from yellowsound.serve.page.render import HEADERS, page
from yellowsound.serve.routes.videos import Here

router = APIRouter()
_MAX_CHARACTERS = 1000


@router.get("/key")
def show_key(request: Request, then: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    """The form that asks for the key."""
    return page(request, "key.html", then=_own(then), problem="")


@router.post("/key")
def take_key(
    request: Request,
    service: Here,
    key: Annotated[str, Form(max_length=_MAX_CHARACTERS)] = "",
    then: Annotated[str, Form(max_length=2000)] = "/",
) -> Response:
    """Set the session cookie for a right key and go on; a wrong one is asked for again."""
    owner = "" if service.auth.is_open else service.auth.owner_of_key(key.strip())
    if owner is None:
        return page(request, "key.html", 401, then=_own(then), problem="This is not a key of this server.")
    answer = RedirectResponse(_own(then), 303, headers=HEADERS)
    if owner:
        secure = request.url.scheme == "https" or service.settings.public_url.startswith("https:")
        cookie = service.auth.session_cookie(owner)
        answer.set_cookie(COOKIE, cookie, path="/", httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/key/forget")
def forget_key() -> Response:
    """Drop the session cookie."""
    answer = RedirectResponse("/key", 303, headers=HEADERS)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _own(then: str) -> str:
    """``then`` if it is a path of this server, else the start page: no link may lead elsewhere."""
    is_own = then.startswith("/") and not then.startswith("//") and "\\" not in then and then.isprintable()
    return then if is_own else "/"
