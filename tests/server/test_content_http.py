"""Downloading: ranges, tags, HEAD, thumbnails, what a browser's <video> needs, and files that outlive their record."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.datastructures import Headers

from yellowsound.serve.content import FileAnswer, parse_range
from yellowsound.serve.errors import ApiError


@pytest.fixture(scope="module")
def clip(shared_server: Any) -> Any:
    """(path of the content, its bytes) of one completed clip."""
    import httpx2

    with httpx2.Client(base_url=shared_server.url) as client:
        job = client.post("/v1/videos/sync", json={"prompt": "a", "num_frames": 25})
        path = f"/v1/videos/{job.headers['x-video-id']}/content"
        return path, job.content


def test_plain_download(api: Any, clip: Any) -> None:
    path, data = clip
    answer = api.get(path)
    headers = answer.headers
    assert answer.content == data and headers["content-type"] == "video/mp4"
    assert headers["accept-ranges"] == "bytes" and headers["content-length"] == str(len(data))
    assert headers["content-disposition"].startswith("inline; filename=") and "content-encoding" not in headers
    assert headers["etag"].startswith('"') and "last-modified" in headers and "private" in headers["cache-control"]
    saved = api.get(path, params={"download": 1}).headers["content-disposition"]
    assert saved.startswith("attachment; filename=")


def test_head_equals_get_without_body(api: Any, clip: Any) -> None:
    path, data = clip
    head, get = api.head(path), api.get(path)
    assert head.status_code == 200 and head.content == b""
    for name in ("content-length", "content-type", "etag", "last-modified", "accept-ranges", "content-disposition"):
        assert head.headers[name] == get.headers[name]
    assert head.headers["content-length"] == str(len(data))


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-1", 0, 1), ("bytes=5-", 5, None), ("bytes=-7", -7, None), ("BYTES=3-3", 3, 3)],
)
def test_single_ranges(api: Any, clip: Any, asked: str, first: int, last: int | None) -> None:
    path, data = clip
    answer = api.get(path, headers={"range": asked})
    begin = first if first >= 0 else len(data) + first
    end = len(data) - 1 if last is None else last
    assert answer.status_code == 206 and answer.content == data[begin : end + 1]
    assert answer.headers["content-range"] == f"bytes {begin}-{end}/{len(data)}"
    assert answer.headers["content-length"] == str(end - begin + 1)


@pytest.mark.parametrize(
    "asked", ["bytes=", "bytes=a-b", "frames=0-1", "bytes=5-2", "bytes=0-1,4-5", "bytes=--1", "0-1"]
)
def test_odd_ranges_are_ignored(api: Any, clip: Any, asked: str) -> None:
    path, data = clip
    answer = api.get(path, headers={"range": asked})
    assert answer.status_code == 200 and answer.content == data


def test_range_beyond_the_end_is_416(api: Any, clip: Any) -> None:
    path, data = clip
    for asked in (f"bytes={len(data)}-", "bytes=-0"):
        answer = api.get(path, headers={"range": asked})
        assert answer.status_code == 416 and answer.headers["content-range"] == f"bytes */{len(data)}"
        assert answer.json()["error"]["code"] == "range_not_satisfiable"


def test_conditions(api: Any, clip: Any) -> None:
    path, _ = clip
    headers = api.get(path).headers
    tag, date = headers["etag"], headers["last-modified"]
    for known in ({"if-none-match": tag}, {"if-none-match": f'"x", W/{tag}'}, {"if-modified-since": date}):
        answer = api.get(path, headers=known)
        assert answer.status_code == 304 and answer.content == b"" and answer.headers["etag"] == tag
    assert api.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    for condition, status in ((tag, 206), (date, 206), ('"other"', 200)):
        answer = api.get(path, headers={"range": "bytes=0-1", "if-range": condition})
        assert answer.status_code == status


def test_thumbnail_and_last_frame(api: Any, clip: Any) -> None:
    path, _ = clip
    thumbnail = api.get(path, params={"variant": "thumbnail"})
    assert thumbnail.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(thumbnail.content)).size == (64, 48)
    last = api.get(path, params={"variant": "last_frame"})
    assert last.headers["content-type"] == "image/png" and Image.open(io.BytesIO(last.content)).size == (64, 48)
    wrong = api.get(path, params={"variant": "spritesheet"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "variant"


def test_download_outlives_delete(api: Any) -> None:
    job = api.run("a", num_frames=49, size="640x352")
    with api.stream("GET", job["content_url"]) as answer:
        chunks = answer.iter_raw(1000)
        first = next(chunks)
        assert api.delete(f"/v1/videos/{job['id']}").status_code == 200
        rest = b"".join(chunks)
        assert len(first) + len(rest) == job["bytes"]
    assert api.get(job["content_url"]).status_code == 404


def test_two_players_side_by_side(api: Any, clip: Any) -> None:
    path, data = clip
    with api.stream("GET", path) as one, api.stream("GET", path, headers={"range": "bytes=10-"}) as two:
        assert two.read() == data[10:] and one.read() == data


def test_descriptor_is_closed_when_nothing_is_sent(tmp_path: Path) -> None:
    import os

    file = tmp_path / "clip"
    file.write_bytes(b"0123456789")
    before = len(os.listdir("/proc/self/fd"))
    for asked in ("bytes=50-", "bytes=0-1"):
        try:
            answer = FileAnswer(file, Headers({"range": asked}), method="GET", media_type="video/mp4", tag="t")
            answer.close()
        except ApiError as error:
            assert error.status == 416
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("text", "expected"), [("bytes=0-99", (0, 9)), ("bytes=-99", (0, 9)), ("bytes=9-", (9, 9))])
def test_ranges_are_cut_to_the_file(text: str, expected: tuple[int, int]) -> None:
    assert parse_range(text, 10) == expected
