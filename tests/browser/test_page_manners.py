"""Manners of every page: accessible, narrow, self-contained, behind a key where there is one, fine without scripts."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from .conftest import Site, StartSite

pytestmark = pytest.mark.browser
KEY = "a long and secret key"


@pytest.fixture(scope="module")
def paths(shared_site: Site) -> dict[str, str]:
    """One address of every page, with something on each."""
    api = shared_site.api
    first, second = (api.run(f"a clip for every page {i}", size="256x144", num_frames=25)["id"] for i in range(2))
    failed = api.wait(api.create("[nan] a clip that fails")["id"])["id"]
    return {
        "home": "/",
        "filled": f"/?same_as={first}",
        "last frame": f"/?image_from={first}",
        "clips": "/clips",
        "nothing found": "/clips?q=nothing-is-called-so",
        "clip": f"/clips/{first}",
        "failed clip": f"/clips/{failed}",
        "compare": f"/compare?clip={first}&clip={second}",
        "choice": "/compare",
        "status": "/status",
        "no such clip": f"/clips/video_{'0' * 32}",
        "key": "/key",
    }


@pytest.fixture
def busy(site: Site) -> None:
    """A clip with a preview runs, others wait, one of them with a prompt that nothing can break."""
    running = site.api.create("[step=0.5] a running clip", num_inference_steps=200)
    site.api.create("a waiting clip")
    site.api.create(f"a prompt without a space: {'x' * 120}")
    site.api.until(running["id"], lambda job: job["preview_url"])


def settled(page: Page) -> Page:
    """The page once its plan, if it has one, is there and its stream has spoken."""
    page.wait_for_load_state("load")
    if page.locator("#plan").count():
        expect(page.locator("#plan")).to_contain_text("Card:")
    return page


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(site: Site, paths: dict[str, str], scheme: str) -> None:
    options = {"resultTypes": ["violations"]}
    if scheme == "dark":  # nothing but the colours is different
        options["runOnly"] = ["color-contrast"]
    page = site.open("/", color_scheme=scheme)
    for name, path in paths.items():
        page.goto(site.url + path)
        results = Axe().run(settled(page), options=options)
        assert results.violations_count == 0, f"{name}: {results.generate_report()}"


@pytest.mark.usefixtures("busy")
def test_nothing_is_wider_than_a_phone(site: Site, paths: dict[str, str]) -> None:
    page = site.open("/", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for name, path in paths.items():
        page.goto(site.url + path)
        settled(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{name} is {width} pixels wide"
    page.goto(site.url)
    box = page.get_by_role("button", name="Create").bounding_box()
    assert box is not None and box["height"] >= 44


def test_every_page_forbids_what_is_not_its_own(site: Site, paths: dict[str, str]) -> None:
    for name, path in paths.items():
        answer = site.api.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy, name
        assert "unsafe" not in policy and "http" not in policy, name
        assert " style=" not in answer.text and " onclick=" not in answer.text and "<style" not in answer.text, name


def test_the_page_asks_for_the_key_once(start_site: StartSite) -> None:
    site = start_site(key=KEY, api_keys=(KEY,))
    job = site.api.run("behind a key")
    page = site.open(f"/clips/{job['id']}")
    page.wait_for_url("**/key?then=*")
    page.get_by_label("Key").fill("another key")
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#error-key")).to_have_text("This is not a key of this server.")
    page.get_by_label("Key").fill(KEY)
    page.get_by_role("button", name="Open").click()
    page.wait_for_url(f"**/clips/{job['id']}")
    expect(page.locator("video")).to_have_js_property("videoWidth", 64)
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["expires"] == -1
    assert KEY not in cookie["value"]
    page.goto(site.url)
    page.get_by_label("Prompt", exact=True).fill("made with the cookie")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("h3", has_text="made with the cookie")).to_be_visible()
    page.get_by_role("button", name="Forget key").click()
    page.wait_for_url("**/key")
    page.goto(site.url + "/status")
    page.wait_for_url("**/key?then=*")


def test_keys_that_are_kept_apart_see_their_own_clips_only(start_site: StartSite) -> None:
    site = start_site(key=KEY, api_keys=(KEY, "their key"), isolate_keys=True)
    kept, failed = site.api.run("a private clip"), site.api.wait(site.api.create("[nan] a private failure")["id"])
    page = site.open("/key")
    page.get_by_label("Key").fill("their key")
    page.get_by_role("button", name="Open").click()
    page.wait_for_url(site.url + "/")
    for path in ("/", "/clips", "/compare", "/status", f"/clips/{kept['id']}", f"/?image_from={kept['id']}"):
        page.goto(site.url + path)
        expect(page.locator("h1")).to_be_visible()
        assert "private" not in page.content(), path
    for action in ("cancel", "delete", "again", "next"):
        answer = page.request.post(f"{site.url}/clips/{failed['id']}/{action}")
        assert answer.status == 404, action
    assert site.api.job(failed["id"])["id"] == failed["id"]


def test_the_page_works_without_scripts(site: Site) -> None:
    page = site.open("/", java_script_enabled=False)
    page.get_by_label("Prompt", exact=True).fill("[step=600] without scripts")
    page.get_by_label("Seed").fill("abc")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#error-seed")).to_contain_text("must be a whole number")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("[step=600] without scripts")
    page.get_by_label("Seed").fill("1")
    page.get_by_role("button", name="Create").click()
    title = page.locator("#live a", has_text="[step=600] without scripts").first
    expect(title).to_be_visible()
    title.click()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_url("**/clips/video_*")
    expect(page.locator(".badge")).to_have_text("Cancelled")
