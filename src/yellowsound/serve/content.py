"""Files over HTTP: single ranges, entity tags, HEAD, and a descriptor that stays open for the whole download.

Follows RFC 9110: a Range that is malformed, of another unit or of several parts is ignored and the whole file sent.
"""

from __future__ import annotations

import os
import re
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from yellowsound.serve.errors import ApiError

CHUNK_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE | re.ASCII)
_MAX_DIGITS = 19


class FileAnswer(Response):
    """One file as an answer to GET, HEAD or POST (there always whole). Open at once, so a later removal does no harm.

    Raises FileNotFoundError when the file is not there, ApiError 416 for a range beyond its end.
    """

    def __init__(
        self,
        path: Path,
        request_headers: Headers,
        *,
        method: str,
        media_type: str,
        tag: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(self._descriptor)
            etag, modified = f'"{tag}"', formatdate(status.st_mtime, usegmt=True)
            first, last = self._select(request_headers, method, status.st_size, etag, modified)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._first, self._length = first, last - first + 1
        self._has_body = method != "HEAD" and self._code != 304
        super().__init__(status_code=self._code, media_type=media_type, headers=headers)
        self.headers["Accept-Ranges"] = "bytes"
        self.headers["ETag"], self.headers["Last-Modified"] = etag, modified
        if self._code == 206:
            self.headers["Content-Range"] = f"bytes {first}-{last}/{status.st_size}"
        if self._code == 304:
            del self.headers["Content-Length"]
        else:
            self.headers["Content-Length"] = str(self._length)

    def _select(self, headers: Headers, method: str, size: int, etag: str, modified: str) -> tuple[int, int]:
        self._code = 200
        if method != "POST" and _is_known(headers, etag, modified):
            self._code = 304
            return 0, -1
        found = None
        if method == "GET" and _range_applies(headers, etag, modified):
            found = parse_range(headers.get("range", ""), size)
        if found is None:
            return 0, size - 1
        self._code = 206
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            offset, left = self._first, self._length if self._has_body else 0
            while left > 0:
                chunk = await anyio.to_thread.run_sync(os.pread, self._descriptor, min(CHUNK_BYTES, left), offset)
                if not chunk:
                    raise OSError("the file became shorter while it was sent")
                offset, left = offset + len(chunk), left - len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})
            if self._length <= 0 or not self._has_body:
                await send({"type": "http.response.body", "body": b""})
        finally:
            self.close()

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """First and last byte of a single range; None when it is to be ignored. Raises ApiError 416."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or not any(match.groups()) or max(map(len, match.groups())) > _MAX_DIGITS:
        return None
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last)), size - 1
        beyond = int(last) == 0 or size == 0
    else:
        begin, end = int(first), min(int(last), size - 1) if last else size - 1
        if last and int(last) < begin:
            return None
        beyond = begin >= size
    if beyond:
        headers = {"Content-Range": f"bytes */{size}"}
        raise ApiError(416, "range_not_satisfiable", f"the file has {size} bytes", headers=headers)
    return begin, end


def _is_known(headers: Headers, etag: str, modified: str) -> bool:
    tags = headers.get("if-none-match")
    if tags is not None:
        return tags.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in tags.split(","))
    since = headers.get("if-modified-since")
    if since is None:
        return False
    try:
        return parsedate_to_datetime(modified) <= parsedate_to_datetime(since)
    except (ValueError, TypeError):
        return False


def _range_applies(headers: Headers, etag: str, modified: str) -> bool:
    condition = headers.get("if-range")
    return condition is None or condition.strip() in (etag, modified)
