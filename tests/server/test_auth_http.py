"""Keys, signed links, the page's cookie, other web sites, and one key's view of another's jobs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from yellowsound.serve.auth import COOKIE, Auth

KEYS = ("first-key", "second-key")


@pytest.fixture
def closed(start_server: Any) -> Any:
    """A server with two keys and a client that shows the first."""
    return start_server(api_keys=KEYS, isolate_keys=True, key="first-key", limits={"queue_per_key": 3})


def bare(api: Any, method: str, path: str, **options: Any) -> Any:
    """A request without the client's own headers."""
    import httpx2

    return httpx2.request(method, str(api.base_url).rstrip("/") + path, **options)


def test_no_key_wrong_key_lower_case_scheme(closed: Any) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first-key"},
        {"authorization": "é"},
    ):
        answer = bare(closed, "GET", "/v1/videos", headers={k: v.encode() for k, v in headers.items()})
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key") and error["message"]
    assert bare(closed, "GET", "/v1/videos", headers={"authorization": "bearer second-key"}).status_code == 200


def test_open_paths(closed: Any) -> None:
    assert bare(closed, "GET", "/health").status_code == 200
    assert bare(closed, "GET", "/metrics").status_code == 200
    for path in ("/v1/models", "/v1/nothing", "/v1", "/v1/queue", "/v1/events"):
        assert bare(closed, "GET", path).status_code == 401


def test_signed_link_opens_one_video_only(closed: Any) -> None:
    one, two = closed.run("a"), closed.run("b")
    url = one["content_url"]
    assert bare(closed, "GET", url).status_code == 200
    assert bare(closed, "HEAD", url).status_code == 200
    assert bare(closed, "GET", url, headers={"range": "bytes=0-1"}).status_code == 206
    assert bare(closed, "GET", one["thumbnail_url"]).status_code == 200
    assert bare(closed, "GET", url.replace(one["id"], two["id"])).status_code == 401
    assert bare(closed, "GET", url[:-1] + ("0" if url[-1] != "0" else "1")).status_code == 401
    assert bare(closed, "DELETE", url.replace("/content", "")).status_code == 401
    assert bare(closed, "GET", url.replace("/content", "")).status_code == 401
    assert closed.job(one["id"])["content_url"] == url


def test_links_and_cookies_expire_and_cannot_be_made_up() -> None:
    auth = Auth(KEYS, b"secret", 10)
    job = "video_" + "0" * 32
    query = dict(part.split("=") for part in auth.signed_query(job).split("&"))
    assert auth.link_is_good(job, query["expires"], query["signature"])
    assert not auth.link_is_good(job, str(int(query["expires"]) + 3600), query["signature"])
    assert not Auth(KEYS, b"other", 10).link_is_good(job, query["expires"], query["signature"])
    past = str(int(time.time()) - 1)
    assert not auth.link_is_good(job, past, auth._sign(f"{job}:{past}"))
    for junk in ("", "abc", "٣", "9" * 40):
        assert not auth.link_is_good(job, junk, query["signature"])
    owner = auth.owner_of_key("first-key")
    assert owner and auth.owner_of_cookie({COOKIE: auth.session_cookie(owner)}) == owner
    assert auth.owner_of_cookie({COOKIE: f"{owner}.{'0' * 40}"}) is None
    assert Auth(("another",), b"secret", 10).owner_of_cookie({COOKIE: auth.session_cookie(owner)}) is None


def test_cookie_counts_as_a_key(closed: Any) -> None:
    auth = closed.service.auth
    cookie = auth.session_cookie(auth.owner_of_key("first-key"))
    assert bare(closed, "GET", "/v1/videos", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 200
    assert bare(closed, "GET", "/v1/videos", headers={"cookie": f"{COOKIE}=x.y"}).status_code == 401


def test_keys_do_not_see_each_other(closed: Any) -> None:
    job = closed.create("[step=0.2]")
    other = {"authorization": "Bearer second-key"}
    assert bare(closed, "GET", "/v1/videos", headers=other).json()["data"] == []
    for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "/cancel"), ("GET", "/events")):
        answer = bare(closed, method, f"/v1/videos/{job['id']}{tail}", headers=other)
        assert answer.status_code == 404, (method, tail)
    assert closed.get("/v1/videos").json()["data"][0]["id"] == job["id"]
    shown = {"Idempotency-Key": "same"}
    mine = closed.post("/v1/videos", json={"prompt": "a"}, headers=shown).json()
    theirs = bare(closed, "POST", "/v1/videos", json={"prompt": "b"}, headers={**other, **shown})
    assert theirs.status_code == 200 and theirs.json()["id"] != mine["id"]


def test_each_key_has_its_own_limit(closed: Any) -> None:
    closed.post("/v1/queue/pause")
    for _ in range(3):
        closed.create()
    assert closed.send_form(prompt="a").status_code == 429
    other = bare(closed, "POST", "/v1/videos", json={"prompt": "a"}, headers={"authorization": "Bearer second-key"})
    assert other.status_code == 200


def test_other_web_sites_cannot_act(start_server: Any) -> None:
    api = start_server(cors_origins=("https://good.example",))
    foreign = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    answer = api.post("/v1/videos", json={"prompt": "a"}, headers=foreign)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "cross_site"
    assert "access-control-allow-origin" not in answer.headers
    friend = {"sec-fetch-site": "cross-site", "origin": "https://good.example"}
    answer = api.post("/v1/videos", json={"prompt": "a"}, headers=friend)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert "Content-Range" in answer.headers["access-control-expose-headers"]
    ask = {**friend, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    assert api.options("/v1/videos", headers=ask).status_code == 200
    assert api.post("/v1/videos", json={"prompt": "a"}, headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_secret_survives_a_restart(start_server: Any) -> None:
    api = start_server(api_keys=KEYS, key="first-key")
    url = api.run()["content_url"]
    api.stop()
    again = start_server(api_keys=KEYS, key="first-key")
    assert bare(again, "GET", url).status_code == 200
