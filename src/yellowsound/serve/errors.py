"""The one error envelope of the API: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from yellowsound.request import RequestError
from yellowsound.serve.logging import logger

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_TYPES = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error", 422: "generation_error"}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large", 415: "unsupported_media_type"}
NO_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """An answer that is not the one asked for: HTTP status, code, message for a person, and the field at fault."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = dict(headers or {})


def envelope(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """The body of an error answer."""
    kind = _TYPES.get(status) or ("rate_limit_error" if status == 429 else None)
    kind = kind or ("server_error" if status >= 500 and status != 501 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def answer(error: ApiError) -> JSONResponse:
    return JSONResponse(
        envelope(error.status, error.code, error.message, error.param), error.status, headers=error.headers
    )


def from_request_error(error: RequestError) -> ApiError:
    """A refused field as 400; ``guidance_scale`` and friends keep their request names."""
    code = "invalid_image" if error.field == "image" else "invalid_value"
    param = "input_reference" if error.field == "image" else error.field
    return ApiError(400, code, str(error), param)


def install_handlers(app: FastAPI) -> None:
    """Every exception that can leave a route becomes the envelope; nothing of a traceback goes on the wire."""

    @app.exception_handler(ApiError)
    async def _api(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return answer(error)

    @app.exception_handler(RequestError)
    async def _request(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestError)
        return answer(from_request_error(error))

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = str(first["loc"][-1]) if first.get("loc") else None
        return answer(ApiError(400, "invalid_value", f"{param}: {first['msg']}", param))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return answer(_from_http(app, request, error))

    @app.exception_handler(Exception)
    async def _unexpected(request: Request, error: Exception) -> JSONResponse:
        logger().error("unexpected", path=request.url.path, exc_info=error)
        return answer(ApiError(500, "internal_error", "The server failed on this request; its log says why."))


def _from_http(app: FastAPI, request: Request, error: HTTPException) -> ApiError:
    status = error.status_code
    if status == 405:
        allow = ", ".join(m for m in METHODS if _serves(app, request, m))
        message = f"{request.method} is not served here; allowed: {allow}"
        return ApiError(405, "method_not_allowed", message, headers={"Allow": allow})
    message = "There is nothing at this address." if status == 404 else str(error.detail)
    return ApiError(status, _CODES.get(status, "invalid_request"), message, headers=error.headers)


def _serves(app: FastAPI, request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in app.router.routes)
