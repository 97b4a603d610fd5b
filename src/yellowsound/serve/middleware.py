"""What every request passes: an id, who asks, where from, how much. Plain ASGI, so that streams stay streams."""

from __future__ import annotations

import asyncio
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yellowsound.serve.auth import Auth
from yellowsound.serve.errors import ApiError, answer
from yellowsound.serve.settings import MEBIBYTE, Settings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DRAIN_SECONDS = 5.0
_DRAIN_BYTES = 256 * MEBIBYTE


class RequestGate:
    """Gives each request an id, trims slashes, checks key and origin, and counts the body while it comes."""

    def __init__(self, app: ASGIApp, auth: Auth, settings: Settings) -> None:
        self._app, self._auth, self._settings = app, auth, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send, f"req_{secrets.token_hex(12)}")
        path = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            scope["path"] = path.rstrip("/") or "/"
        limited = _LimitedBody(receive, self._settings.limits.body_bytes)
        try:
            scope.setdefault("state", {})["owner"] = self._admit(scope)
            limited.check_announced(Headers(scope=scope))
        except ApiError as error:
            await limited.drain()
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, limited, send)

    def _admit(self, scope: Scope) -> str | None:
        """The owner id of the request, None for a page visitor without a key. Raises ApiError 401, 403."""
        headers = Headers(scope=scope)
        _check_origin(scope["method"], headers, self._settings.cors_origins)
        if self._auth.is_open:
            return ""
        owner = self._auth.owner_of_header(headers.get("authorization"))
        owner = owner or self._auth.owner_of_cookie(_cookies(headers))
        if owner is None and self._needs_key(scope) and not self._has_link(scope):
            raise ApiError(
                401,
                "invalid_api_key",
                "This server needs a key: send the header Authorization: Bearer KEY.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return owner

    def _needs_key(self, scope: Scope) -> bool:
        path = scope["path"]
        if scope["method"] == "OPTIONS":
            return False
        return path == "/v1" or path.startswith("/v1/") or (path == "/metrics" and not self._settings.open_metrics)

    def _has_link(self, scope: Scope) -> bool:
        parts = scope["path"].strip("/").split("/")
        is_file = len(parts) == 4 and parts[:2] == ["v1", "videos"] and parts[3] in ("content", "preview")
        if not is_file or scope["method"] not in SAFE_METHODS:
            return False
        query = parse_qs(scope["query_string"].decode("latin-1"))
        expires, signature = query.get("expires", [""])[0], query.get("signature", [""])[0]
        scope["state"]["by_link"] = self._auth.link_is_good(parts[2], expires, signature)
        return bool(scope["state"]["by_link"])


class _LimitedBody:
    """A ``receive`` that refuses the body once it is larger than allowed."""

    def __init__(self, receive: Receive, limit_bytes: int) -> None:
        self._receive, self._limit = receive, limit_bytes
        self._seen = 0
        self._ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._ended = not message.get("more_body", False)
            if self._seen > self._limit:
                await self.drain()
                raise self._too_large()
        return message

    def check_announced(self, headers: Headers) -> None:
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit:
            raise self._too_large()

    async def drain(self) -> None:
        """Read on a little, so that a client that is still sending gets to see the answer."""
        drained = 0
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self._ended and drained < _DRAIN_BYTES:
                    message = await self._receive()
                    drained += len(message.get("body", b""))
                    self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        except TimeoutError:
            pass

    def _too_large(self) -> ApiError:
        limit = f"{self._limit / MEBIBYTE:g} MiB"
        return ApiError(413, "payload_too_large", f"the body is larger than {limit}, the limit of one request")


def _with_headers(send: Send, request_id: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = request_id
            headers.setdefault("X-Content-Type-Options", "nosniff")
        await send(message)

    return sending


def _check_origin(method: str, headers: Headers, allowed: tuple[str, ...]) -> None:
    """Browsers say where a request comes from: another site may not change anything here."""
    if method in SAFE_METHODS or headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return
    origin = headers.get("origin", "")
    if origin not in allowed and "*" not in allowed:
        raise ApiError(403, "cross_site", "Requests from other web sites are refused; see --cors-origin.")


def _cookies(headers: Headers) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}
