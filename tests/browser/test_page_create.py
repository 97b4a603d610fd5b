"""Making clips on the page: create, watch, cancel, wait in the queue, try again."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

from .conftest import Site

pytestmark = pytest.mark.browser
SLOW, HELD = "[step=1]", "[step=600]"


def submit(page: Page, prompt: str, **fields: str) -> None:
    """Fill the form and press Create."""
    page.get_by_label("Prompt", exact=True).fill(prompt)
    for label, value in fields.items():
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Create").click()


def newest(site: Site) -> dict[str, object]:
    return dict(site.api.get("/v1/videos", params={"limit": 1}).json()["data"][0])


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "red square.png"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path)
    return path


def test_a_clip_is_made_watched_and_played_in_place(site: Site) -> None:
    page = site.open()
    submit(page, f"{SLOW} a whistling kettle", Seed="9007199254740993")
    expect(page.locator("#form-answer")).to_contain_text("Accepted")
    card = page.locator("article.running")
    expect(card).to_contain_text(re.compile(r"Denoising, step \d of 4"))
    expect(card.locator("img.strip")).to_be_visible()
    assert card.locator("img.strip").evaluate("async image => (await image.decode(), image.naturalWidth)") > 0
    job_id = str(newest(site)["id"])
    video = page.locator(f"#player-{job_id}")
    expect(video).to_be_visible()
    video.evaluate("video => { video.muted = true; return video.play() }")
    page.wait_for_function("id => document.getElementById(id).currentTime > 0.1", arg=f"player-{job_id}")
    job = site.api.job(job_id)
    assert job["status"] == "completed" and job["seed"] == 9007199254740993
    assert job["warnings"] == []
    other = site.api.run("a newer clip above it")
    expect(page.locator(f"#player-{other['id']}")).to_be_visible()
    assert video.evaluate("video => !video.paused"), "the stream must not stop what plays"


def test_a_refusal_stands_beside_its_field_and_takes_the_focus(site: Site) -> None:
    page = site.open()
    before = site.api.count()
    submit(page, "a cat", Seed="1.5")
    expect(page.locator("#error-seed")).to_contain_text("must be a whole number")
    expect(page.locator("#seed")).to_be_focused()
    expect(page.locator("#seed")).to_have_attribute("aria-invalid", "true")
    submit(page, "  ", Seed="1")
    expect(page.locator("#error-prompt")).to_contain_text("prompt")
    expect(page.locator("#error-seed")).to_be_empty()
    expect(page.locator("#seed")).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Size").select_option("other")
    page.get_by_label("Width × height").fill("854x480")
    submit(page, "a cat")
    expect(page.locator("#error-size")).to_contain_text("848x480 or 864x480")
    assert site.api.count() == before


def test_expected_seconds_come_from_this_machine(site: Site) -> None:
    page = site.open()
    page.get_by_text("More options").click()
    page.get_by_label("Steps").fill("7")
    page.get_by_label("Steps").blur()
    expect(page.locator("#expected-exact")).to_have_text("no such clip was made here yet")
    site.api.run("a cat", num_inference_steps=7, recipe="exact")
    page.get_by_label("Steps").fill("8")
    page.get_by_label("Steps").blur()
    expect(page.locator("#expected-exact")).to_have_text("no such clip was made here yet")
    page.get_by_label("Steps").fill("7")
    page.get_by_label("Steps").blur()
    expect(page.locator("#expected-exact")).to_have_text(re.compile(r"about [\d.]+ s on this machine"))
    expect(page.locator("#expected-trimmed")).to_have_text("no such clip was made here yet")


@pytest.mark.parametrize("way", ["drop", "paste", "file"])
def test_a_picture_comes_by(site: Site, picture: Path, way: str) -> None:
    page = site.open()
    if way == "file":
        page.locator("#input_reference").set_input_files(picture)
    else:
        bytes_ = list(picture.read_bytes())
        page.evaluate(
            """([way, bytes]) => {
                const carried = new DataTransfer();
                carried.items.add(new File([new Uint8Array(bytes)], "red square.png", {type: "image/png"}));
                const event = way === "drop"
                    ? new DragEvent("drop", {dataTransfer: carried, bubbles: true, cancelable: true})
                    : new ClipboardEvent("paste", {clipboardData: carried, bubbles: true, cancelable: true});
                document.getElementById("drop").dispatchEvent(event);
            }""",
            [way, bytes_],
        )
    expect(page.locator("#picture-shown")).to_be_visible()
    expect(page.locator("#picture-name")).to_have_text("red square.png")
    submit(page, f"from a picture by {way}")
    expect(page.locator("#form-answer")).to_contain_text("Accepted")
    job = newest(site)
    assert job["has_image"] is True
    assert site.service.files.picture(str(job["id"])).read_bytes() == picture.read_bytes()
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#picture")).to_be_hidden()


def test_what_is_no_picture_is_refused_at_the_picture(site: Site, tmp_path: Path) -> None:
    page = site.open()
    (tmp_path / "page.png").write_text("<html>no</html>")
    page.locator("#input_reference").set_input_files(tmp_path / "page.png")
    submit(page, "a cat")
    expect(page.locator("#error-input_reference")).to_contain_text("image=")
    expect(page.locator("#input_reference")).to_be_focused()


def test_a_cancelled_clip_keeps_its_preview(site: Site) -> None:
    page = site.open()
    job = site.api.create("[step=0.3] a long walk", num_inference_steps=200)
    card = page.locator(f"#job-{job['id']}")
    expect(card.locator("img.strip")).to_be_visible()
    card.get_by_role("button", name="Cancel").click()
    ended = page.locator(f"#ended-{job['id']}")
    expect(ended).to_contain_text("Cancelled")
    expect(ended.locator("img.strip")).to_be_visible()
    assert ended.locator("img.strip").evaluate("async image => (await image.decode(), image.naturalWidth)") > 0
    assert site.api.wait(job["id"])["error"]["code"] == "cancelled"


def test_the_queue_has_positions_and_can_be_paused_reordered_and_thinned(site: Site) -> None:
    page = site.open()
    site.api.create(f"{HELD} first")
    second, third, fourth = (site.api.create(name)["id"] for name in ("second", "third", "fourth"))
    places = page.locator("ol.queue .place")
    expect(places).to_have_text(["1", "2", "3"])
    page.locator(f"#next-{fourth}").click()
    waiting = page.locator("ol.queue li")
    expect(waiting).to_have_text([re.compile("fourth"), re.compile("second"), re.compile("third")])
    page.locator(f"#cancel-{second}").click()
    expect(waiting).to_have_count(2)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#paused")).to_be_visible()
    running = page.locator("article.running")
    running.get_by_role("button", name="Cancel").click()
    expect(running).to_have_count(0)
    assert site.api.job(fourth)["status"] == "queued"
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(f"#player-{third}")).to_be_visible()
    assert site.api.job(second)["error"]["code"] == "cancelled"


def test_reload_and_second_tab_show_the_same(site: Site) -> None:
    context = site.context()
    first = site.open("/", context)
    submit(first, f"{HELD} seen everywhere")
    title = first.locator("article.running h3")
    expect(title).to_have_text(f"{HELD} seen everywhere")
    first.reload()
    expect(title).to_have_text(f"{HELD} seen everywhere")
    second = site.open("/", context)
    expect(second.locator("article.running h3")).to_have_text(f"{HELD} seen everywhere")
    second.get_by_role("button", name="Pause").click()
    expect(first.get_by_role("button", name="Resume")).to_be_visible()
    second.locator("article.running").get_by_role("button", name="Cancel").click()
    expect(first.locator("article.running")).to_have_count(0)


def test_again_takes_a_new_seed_and_the_last_frame_becomes_the_picture(site: Site) -> None:
    page = site.open()
    job = site.api.run("to be continued", seed=5)
    ended = page.locator(f"#ended-{job['id']}")
    ended.get_by_role("button", name="Again with a new seed").click()
    page.wait_for_url("**/clips/video_*")
    again = site.api.wait(page.url.rpartition("/")[2])
    assert again["prompt"] == "to be continued" and again["seed"] != 5
    page.get_by_role("link", name="Use last frame as image").click()
    expect(page.locator("#picture-shown")).to_be_visible()
    submit(page, "the next scene")
    expect(page.locator("#form-answer")).to_contain_text("Accepted")
    sent = Image.open(io.BytesIO(site.service.files.picture(str(newest(site)["id"])).read_bytes()))
    shown = Image.open(io.BytesIO(site.api.get(again["last_frame_url"]).content))
    assert sent.size == shown.size and sent.tobytes() == shown.tobytes()


def test_the_keyboard_is_enough(site: Site) -> None:
    page = site.open()

    def tab_to(element_id: str) -> None:
        for _ in range(60):
            if page.evaluate("document.activeElement.id") == element_id:
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"#{element_id} cannot be reached with the Tab key")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    tab_to("prompt")
    page.keyboard.type(f"{HELD} by hand")
    tab_to("seconds")
    page.keyboard.type("1")
    tab_to("submit")
    page.keyboard.press("Enter")
    expect(page.locator("article.running h3")).to_have_text(f"{HELD} by hand")
    job_id = str(newest(site)["id"])
    tab_to(f"cancel-{job_id}")
    page.keyboard.press("Enter")
    expect(page.locator(f"#ended-{job_id}")).to_contain_text("Cancelled")
    page.locator("#prompt").focus()
    page.keyboard.press("Control+Enter")
    expect(page.locator("article.running h3")).to_have_text(f"{HELD} by hand")


def test_progress_is_announced_politely(site: Site) -> None:
    page = site.open()
    spoken = page.locator("#spoken")
    expect(spoken).to_have_attribute("role", "status")
    job = site.api.create(f"{SLOW} a gong")
    expect(spoken).to_contain_text(re.compile(r"a gong: \w+"))
    site.api.wait(job["id"])
    expect(spoken).to_contain_text("a gong is ready")


def test_a_slow_script_does_not_cost_the_stream(site: Site) -> None:
    context = site.context()

    def late(route: Route) -> None:
        time.sleep(0.5)  # a slow network: htmx is there half a second before its extension
        route.continue_()

    context.route("**/hx-sse.min.js*", late)
    page = site.open("/", context)
    site.api.create(f"{HELD} after a slow start")
    expect(page.locator("article.running h3")).to_have_text(f"{HELD} after a slow start")
