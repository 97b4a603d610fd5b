"""A hub on loopback that serves one repository the way huggingface_hub asks for it, with faults on request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """The repository ``files`` (path to bytes) and what goes wrong. ``requests`` logs (method, path, Range)."""

    files: dict[str, bytes]
    status: int = 200  # of every answer, when not 200
    error_code: str = ""
    cut_after: dict[str, int] = field(default_factory=dict)  # path: bytes after which the connection breaks, once
    fail_pieces_after: int | None = None  # answer this many requests with a Range, then 503
    ignore_range: bool = False
    served: dict[str, bytes] = field(default_factory=dict)  # bytes sent in place of the promised ones
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    @classmethod
    def of_folder(cls, folder: Path) -> FakeHub:
        return cls({str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()})

    def fetched(self, path: str) -> list[str]:
        """The Range headers with which ``path`` was fetched, in order."""
        return [ranges for method, got, ranges in self.requests if method == "GET" and got.endswith(path)]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range") or ""))
        if self.hub.status != 200:
            return self._json({"error": "no"}, self.hub.status)
        if "/resolve/" in path:
            return self._file(path.split("/resolve/")[1].split("/", 1)[1], body)
        if "/tree/" in path:
            return self._json([_entry(name, data) for name, data in self.hub.files.items()])
        siblings = [{"rfilename": name} for name in self.hub.files]
        return self._json({"id": "x/y", "modelId": "x/y", "sha": COMMIT, "siblings": siblings, "private": False})

    def _json(self, document: Any, status: int = 200) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if self.hub.error_code:
            self.send_header("X-Error-Code", self.hub.error_code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def _file(self, name: str, body: bool) -> None:
        data = self.hub.served.get(name, self.hub.files[name])
        wanted = None if self.hub.ignore_range else self.headers.get("Range")
        if body and wanted and self.hub.fail_pieces_after is not None:
            self.hub.fail_pieces_after -= 1
            if self.hub.fail_pieces_after < 0:
                return self._json({"error": "busy"}, 503)
        begin, _, end = wanted.removeprefix("bytes=").partition("-") if wanted else ("0", "", "")
        part = data[int(begin) : int(end) + 1 if end else None]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}")
        self.send_header("ETag", f'"{_identity(name, self.hub.files[name])}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if not body:
            return
        cut = self.hub.cut_after.pop(name, None)
        self.wfile.write(part if cut is None else part[:cut])
        if cut is not None:
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True


def _is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def _identity(name: str, data: bytes) -> str:
    if _is_large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": _identity(name, data)}
    if _is_large(name):
        entry["lfs"] = {"oid": _identity(name, data), "size": len(data), "pointerSize": 134}
    return entry
