"""Reference pictures: every way to send one, every file people have, and addresses that must not be visited."""

from __future__ import annotations

import base64
import http.server
import io
import json
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from yellowsound.request import RequestError
from yellowsound.serve.remote import fetch_picture, is_public
from yellowsound.serve.settings import RemotePictures


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def upload(api: Any, data: bytes, name: str = "upload", **fields: str) -> Any:
    files = {"input_reference": (name, data, "application/octet-stream")}
    return api.post("/v1/videos", data={"prompt": "a", **fields}, files=files)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A one-bit PNG of side x side that is small as a file."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    rows = zlib.compress((b"\0" * (1 + (side + 7) // 8)) * side, 9)
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def is_refused(answer: Any, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == "input_reference"
    return str(error["message"])


def test_every_way_to_send_one(api: Any, png: bytes) -> None:
    url = data_url(png)
    answers = [
        upload(api, png),
        api.send_form(prompt="a", input_reference=url),
        api.send_form(prompt="a", input_reference=json.dumps({"image_url": url})),
        api.send_form(prompt="a", image_reference=json.dumps({"image_url": url})),
        api.send_form(**{"prompt": "a", "input_reference[image_url]": url}),
        api.post("/v1/videos", json={"prompt": "a", "input_reference": {"image_url": url}}),
        api.post("/v1/videos", json={"prompt": "a", "input_reference": url}),
        api.post("/v1/videos", json={"prompt": "a", "image_reference": [{"image_url": {"url": url}}]}),
        api.post("/v1/videos", data={"prompt": "a", "input_reference": url}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json()["has_image"] is True
    assert api.wait(answers[0].json()["id"])["status"] == "completed"


def test_no_picture_in_any_spelling(api: Any) -> None:
    nothing: tuple[Any, ...] = (None, "", {}, [])
    for value in nothing:
        answer = api.post("/v1/videos", json={"prompt": "a", "input_reference": value})
        assert answer.status_code == 200 and answer.json()["has_image"] is False


def test_the_picture_reaches_the_engine_as_sent(api: Any, png: bytes) -> None:
    api.post("/v1/queue/pause")
    job_id = upload(api, png).json()["id"]
    assert api.service.files.picture(job_id).read_bytes() == png
    api.post("/v1/queue/resume")


GOOD = {
    "grey8.png": encoded(Image.new("L", (400, 200), 77), "PNG"),
    "grey16.png": encoded(Image.fromarray(np.full((200, 400), 32768, np.uint16)), "PNG"),
    "cmyk.jpg": encoded(Image.new("CMYK", (400, 200), (0, 255, 255, 0)), "JPEG"),
    "clear_red.png": encoded(Image.new("RGBA", (400, 200), (255, 0, 0, 0)), "PNG"),
    "pal_clear.png": encoded(Image.new("P", (400, 200), 0), "PNG", transparency=0),
    "odd size.bmp": encoded(Image.new("RGB", (333, 216), (9, 9, 9)), "BMP"),
    "../../../../tmp/pwn.png": encoded(Image.new("RGB", (64, 64), (9, 9, 9)), "WEBP"),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_files(api: Any, name: str) -> None:
    answer = upload(api, GOOD[name], name)
    assert answer.status_code == 200, answer.text
    assert not Path("/tmp/pwn.png").exists()


def test_camera_photo_is_scaled_not_refused(api: Any) -> None:
    photo = encoded(Image.new("RGB", (5712, 4284), (90, 120, 60)), "JPEG", quality=60)
    assert upload(api, photo).status_code == 200


def test_animation_is_taken_with_a_warning(api: Any) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "green", "blue")]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=100)
    assert any("first frame" in warning for warning in upload(api, gif).json()["warnings"])


def cut_jpeg() -> bytes:
    noise = Image.fromarray((np.random.default_rng(0).random((200, 400, 3)) * 255).astype("uint8"))
    data = encoded(noise, "JPEG")
    return data[: len(data) * 6 // 10]


@pytest.mark.parametrize("name", ["cut.jpg", "page.png", "empty.png"])
def test_bad_files(api: Any, name: str) -> None:
    data = {"cut.jpg": cut_jpeg(), "page.png": b"<html>no</html>", "empty.png": b""}[name]
    is_refused(upload(api, data, name))


@pytest.mark.parametrize("side", [13_000, 20_000])
def test_bombs_cost_neither_time_nor_memory(api: Any, side: int) -> None:
    data, before, began = bomb(side), resident_bytes(), time.monotonic()
    is_refused(upload(api, data))
    assert time.monotonic() - began < 5  # a process starts; a second on an idle machine
    assert resident_bytes() - before < 50_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_refused_uploads_leave_nothing(api: Any) -> None:
    before = set(api.service.files.root.rglob("*"))
    for _ in range(5):
        is_refused(upload(api, b"no picture"))
    left = set(api.service.files.root.rglob("*")) - before
    assert not [path for path in left if "sqlite" not in path.name]


def test_two_pictures_or_a_file_id(api: Any, png: bytes) -> None:
    files = [("input_reference", ("a.png", png)), ("input_reference", ("b.png", png))]
    is_refused(api.post("/v1/videos", data={"prompt": "a"}, files=files))
    both = {"prompt": "a", "input_reference": data_url(png), "image_reference": {"image_url": data_url(png)}}
    is_refused(api.post("/v1/videos", json=both))
    answer = api.post("/v1/videos", json={"prompt": "a", "input_reference": {"file_id": "f"}})
    assert "file_id" in is_refused(answer)
    assert answer.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    "value", ["cat.png", "file:///etc/passwd", "data:image/png", "data:;base64,%%%", 7, True, {"a": 1}]
)
def test_what_is_no_picture(api: Any, value: Any) -> None:
    is_refused(api.post("/v1/videos", json={"prompt": "a", "input_reference": value}))


def test_file_over_the_limit(start_server: Any, png: bytes) -> None:
    api = start_server(limits={"picture_bytes": 1000, "text_part_bytes": 5000})
    assert "the limit" in is_refused(upload(api, b"x" * 1001), 413)
    large = data_url(b"x" * 5000)
    is_refused(api.post("/v1/videos", json={"prompt": "a", "input_reference": large}), 413)
    answer = api.send_form(prompt="a", input_reference=large)
    assert answer.status_code == 413 and "text part" in answer.json()["error"]["message"]


def test_urls_are_off_by_default(api: Any) -> None:
    for url in ("http://127.0.0.1:1/x.png", "https://example.com/x.png"):
        message = is_refused(api.post("/v1/videos", json={"prompt": "a", "input_reference": url}))
        assert "fetches no URLs" in message


# -- pictures by URL ---------------------------------------------------------------------------------------------------


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def servers(png: bytes) -> Iterator[dict[str, Any]]:
    """An address that may be visited (127.0.0.2) and one that may not (127.0.0.1), which counts visits."""
    found: dict[str, Any] = {"hits": []}

    class Inner(_Quiet):
        def do_GET(self) -> None:
            found["hits"].append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png)

    class Open(_Quiet):
        def do_GET(self) -> None:
            if self.path == "/hop.png":
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{found['inner']}/inner.png")
                self.end_headers()
                return
            if self.path.startswith("/loop"):
                self.send_response(302)
                self.send_header("Location", "/loop")
                self.end_headers()
                return
            self.send_response(200 if self.path != "/secret" else 403)
            self.end_headers()
            if self.path == "/good.png":
                self.wfile.write(png)
            elif self.path == "/secret":
                self.wfile.write(b"inner words")
            else:
                self.endless()

        def endless(self) -> None:
            pause = 0.05 if self.path == "/slow" else 0.0
            try:
                for _ in range(4096):
                    self.wfile.write(b"\0" * (10 if pause else 65536))
                    time.sleep(pause)
            except OSError:
                pass

    inner = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Inner)
    outer = http.server.ThreadingHTTPServer(("127.0.0.2", 0), Open)
    found |= {"inner": inner.server_address[1], "open": f"http://127.0.0.2:{outer.server_address[1]}"}
    for server in (inner, outer):
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield found
    for server in (inner, outer):
        server.shutdown()
        server.server_close()


RULES = RemotePictures(enabled=True, allow_addresses=("127.0.0.2",), seconds=2, bytes=1 << 20)


def test_picture_by_url(start_server: Any, servers: dict[str, Any]) -> None:
    """T-F4 over HTTP: the good one works, the hop inside does not."""
    api = start_server(remote=RULES)
    good = api.post("/v1/videos", json={"prompt": "a", "input_reference": f"{servers['open']}/good.png"})
    assert good.status_code == 200 and good.json()["has_image"]
    hop = api.send_form(prompt="a", image_reference=json.dumps({"image_url": f"{servers['open']}/hop.png"}))
    assert "not public" in is_refused(hop) and servers["hits"] == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{inner}/x.png", "http://2130706433:{inner}/", "http://[::1]:{inner}/", "http://0:{inner}/",
        "http://169.254.169.254/", "http://localhost:{inner}/", "http://[::ffff:127.0.0.1]:{inner}/",
        "http://10.0.0.1/", "http://user@127.0.0.2/",
    ],
)  # fmt: skip
def test_internal_addresses_are_refused_before_connecting(servers: dict[str, Any], url: str) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError):
        fetch_picture(url.format(**servers), RULES)
    assert servers["hits"] == [] and time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("path", "words"), [("/endless", "larger than 1 MiB"), ("/loop", "redirects"), ("/secret", "could not be fetched")]
)
def test_limits_of_fetching(servers: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refusal:
        fetch_picture(servers["open"] + path, RULES)
    assert "inner words" not in str(refusal.value)


def test_slow_stream_ends_at_the_time_limit(servers: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError, match="could not be fetched"):
        fetch_picture(servers["open"] + "/slow", RULES)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False), ("172.16.0.1", False),
        ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False), ("224.0.0.1", False),
        ("0.0.0.0", False), ("::1", False), ("::ffff:10.0.0.1", False), ("::ffff:8.8.8.8", True), ("fe80::1", False),
        ("fd00::1", False), ("64:ff9b::a00:1", False), ("2002:a00:1::", False), ("ff02::1", False),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public
