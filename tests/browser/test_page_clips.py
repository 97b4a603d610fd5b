"""Finished clips on the page: gallery, player, comparison."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Site, StartSite

pytestmark = pytest.mark.browser
FRAME_SECONDS = 1 / 24


def test_the_gallery_is_the_job_table(site: Site) -> None:
    kept, gone = site.api.run("a blue lighthouse", seed=11), site.api.run("a green lighthouse", seed=12)
    cancelled = site.api.create("[step=600] a lighthouse that never shone")
    site.api.post(f"/v1/videos/{cancelled['id']}/cancel")
    page = site.open("/clips")
    page.get_by_label("Words").fill("LIGHTHOUSE")
    page.get_by_role("button", name="Filter").click()
    tiles = page.locator("#grid > li")
    expect(tiles).to_have_count(3)
    page.get_by_label("State").select_option("completed")
    page.get_by_role("button", name="Filter").click()
    expect(tiles).to_have_count(2)
    page.locator("#grid .cover").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#grid .cover").nth(1)).to_be_focused()
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator(f"#delete-{gone['id']}").click()
    expect(tiles).to_have_count(1)
    assert site.api.get(f"/v1/videos/{gone['id']}").status_code == 404
    page.locator(f"#clip-{kept['id']} .cover").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("a blue lighthouse")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/clips")
    assert site.api.get(f"/v1/videos/{kept['id']}").status_code == 404


def test_the_gallery_goes_on_by_links(start_site: StartSite) -> None:
    site = start_site()
    jobs = [site.api.create(f"number {i}") for i in range(15)]
    site.api.wait(jobs[-1]["id"], seconds=120)
    page = site.open("/clips?q=number")
    titles = page.locator("#grid .title")
    expect(titles).to_have_count(12)
    expect(titles.first).to_have_text("number 14")
    page.get_by_role("link", name="Older clips").click()
    expect(titles).to_have_text(["number 2", "number 1", "number 0"])
    expect(page.get_by_role("link", name="Older clips")).to_have_count(0)
    page.get_by_role("link", name="Newest").click()
    expect(titles.first).to_have_text("number 14")


def test_the_gallery_lives(site: Site) -> None:
    page = site.open("/clips?q=brand-new")
    expect(page.locator("#no-clips")).to_be_visible()
    job = site.api.create("brand-new")
    expect(page.locator(f"#clip-{job['id']}")).to_have_attribute("data-state", "completed")


def test_the_player_seeks_with_ranges(site: Site) -> None:
    job = site.api.run("a long clip", num_frames=241, size="320x240")
    page = site.open("/clips")
    answers: list[tuple[int, str]] = []

    def note(response: object) -> None:
        url, status = response.url, response.status  # type: ignore[attr-defined]
        if f"{job['id']}/content?expires" in url:
            answers.append((status, response.request.headers.get("range", "")))  # type: ignore[attr-defined]

    page.on("response", note)
    page.goto(f"{site.url}/clips/{job['id']}")
    video = page.locator(f"#result-{job['id']} video")
    expect(video).to_have_js_property("videoWidth", 320)
    assert "signature=" in str(video.get_attribute("src"))
    seconds = video.evaluate(
        """video => new Promise((done, fail) => {
            video.onerror = () => fail(video.error.message);
            video.onseeked = () => done(video.currentTime);
            video.currentTime = 8;
        })"""
    )
    assert seconds == pytest.approx(8, abs=FRAME_SECONDS)
    assert answers and all(status == 206 and asked.startswith("bytes=") for status, asked in answers), answers
    head = page.evaluate(
        "async url => (await fetch(url, {headers: {Range: 'bytes=0-99'}})).headers.get('content-range')",
        video.get_attribute("src"),
    )
    assert re.fullmatch(rf"bytes 0-99/{job['bytes']}", head)
    assert page.get_by_role("link", name="Download").get_attribute("href")


def test_a_clip_page_follows_its_job(site: Site) -> None:
    site.api.post("/v1/queue/pause")
    job = site.api.create("[step=1.5] watched alone")
    page = site.open(f"/clips/{job['id']}")
    expect(page.locator(".stage")).to_have_text("Waiting, number 1 in the queue, which is paused.")
    site.api.post("/v1/queue/resume")
    expect(page.locator("progress")).to_be_visible()
    expect(page.locator(f"#result-{job['id']} video")).to_be_visible()
    expect(page.locator("dl.table")).to_contain_text(f"{job['seed']}")
    site.api.delete(f"/v1/videos/{job['id']}")
    expect(page.locator("#gone")).to_be_visible()


def pair(site: Site, num_frames: int = 121) -> tuple[Page, list[str]]:
    """The comparison of two clips, ready to play."""
    ids = [site.api.run(f"side {i}", num_frames=num_frames, size="128x96", seed=i)["id"] for i in range(2)]
    page = site.open(f"/compare?clip={ids[0]}&clip={ids[1]}")
    page.wait_for_function("() => [...document.querySelectorAll('video')].every(video => video.readyState >= 3)")
    return page, ids


# The eye of the next test, beside the page's own script: how far apart the two sides are in what they present.
EYE = """() => {
    window.apart = [];
    window.ended = false;
    const shown = [];
    const videos = [...document.querySelectorAll("video")];
    videos[0].addEventListener("ended", () => { window.ended = true; });
    const watch = (side) => videos[side].requestVideoFrameCallback((_, frame) => {
        shown[side] = frame.mediaTime - frame.expectedDisplayTime / 1000;
        if (shown[0] !== undefined && shown[1] !== undefined && !videos[0].paused) apart.push(shown[0] - shown[1]);
        watch(side);
    });
    watch(0); watch(1);
}"""
VERDICT = f"""() => {{
    const last = window.apart.slice(-24).map(Math.abs).sort((a, b) => a - b);
    if (last.length === 24 && last[12] < {FRAME_SECONDS}) return "in step";  // a busy machine shows some frames late
    return window.ended ? "never in step" : "";
}}"""


def test_two_clips_play_within_one_frame_and_find_back(site: Site) -> None:
    page, _ = pair(site, num_frames=481)
    page.evaluate(EYE)
    page.get_by_role("button", name="Play").click()
    assert page.wait_for_function(VERDICT).json_value() == "in step"
    page.evaluate("() => { document.querySelectorAll('video')[1].currentTime += 0.2; window.apart = []; }")
    page.wait_for_function("() => window.apart.some(x => Math.abs(x) > 0.1)")
    assert page.wait_for_function(VERDICT).json_value() == "in step"
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_frames_are_stepped_one_by_one_on_both_sides(site: Site) -> None:
    page, _ = pair(site)
    both = "[...document.querySelectorAll('video')].map(v => Math.floor(v.currentTime * 24))"
    page.get_by_label("Place").focus()
    page.evaluate("document.activeElement.blur()")
    for expected in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#where")).to_have_text(f"frame {expected + 1} of 121")
        assert page.evaluate(both) == [expected, expected]
    page.get_by_role("button", name="One frame back").click()
    expect(page.locator("#where")).to_have_text("frame 3 of 121")
    assert page.evaluate(both) == [2, 2]


def test_scores_are_shown_when_there_are_some(site: Site) -> None:
    page, ids = pair(site)
    expect(page.locator("#scores")).to_have_count(0)
    folder = site.folder / "scores"
    folder.mkdir(exist_ok=True)
    (folder / f"{ids[1]}.{ids[0]}.json").write_text(json.dumps({"LPIPS (alex)": 0.0412, "PSNR in dB": 31.5}))
    page.reload()
    expect(page.locator("#scores")).to_contain_text(re.compile(r"LPIPS \(alex\)\s*0.0412"))
    expect(page.locator("#scores")).to_contain_text(re.compile(r"PSNR in dB\s*31.5"))


def test_two_clips_are_chosen_in_the_gallery(site: Site) -> None:
    ids = [site.api.run(f"chosen {i}")["id"] for i in range(2)]
    page = site.open("/clips?q=chosen")
    for job_id in ids:
        page.locator(f"#clip-{job_id} input[name=clip]").check()
    page.get_by_role("button", name="Compare two").click()
    expect(page.locator("#compare video")).to_have_count(2)
    assert all(job_id in page.url for job_id in ids)
