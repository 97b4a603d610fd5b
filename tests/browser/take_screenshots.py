"""Take the pictures of docs/page.md: ``.venv/bin/python tests/browser/take_screenshots.py``.

A real server with the stand-in engine makes the jobs; its one-colour clips are then replaced by drawn ones of the same
length, so that the pictures show something. Every number in them is what the stand-in took.
"""

from __future__ import annotations

import importlib.util
import io
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from playwright.sync_api import Page, sync_playwright

from yellowsound.serve.clip_facts import webp
from yellowsound.stages.mux import Mp4Writer

HERE = Path(__file__).parent
IMAGES = HERE.parent.parent / "docs" / "images"
SCENES = (  # sky above, sky below, floor, ball
    ("#7fb7d9", "#f3e3c0", "#3b5f8a", "#e0483e"),
    ("#2b2a4c", "#c86b5a", "#3d3350", "#ffc233"),
    ("#cfe8d5", "#fdf6e3", "#5d8a66", "#7a4fb5"),
    ("#f6c9a0", "#fdf1dc", "#b0724a", "#2f8f9d"),
)
PROMPTS = (
    "A red ball bounces on a blue floor, each landing a soft thud",
    "Dusk by the sea, a yellow ball hops along the pier, waves murmur",
    "A violet ball drops onto moss, a single bell rings",
    "A teal ball rolls down warm sand, wind in the microphone",
)
Frames = npt.NDArray[np.uint8]


def helpers() -> Any:
    """The fixtures' module, for its server and its browser flags."""
    spec = importlib.util.spec_from_file_location("page_conftest", HERE / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def draw(scene: int, place: float, width: int, height: int) -> Image.Image:
    """One moment of a bouncing ball; ``place`` runs from 0 to 1 over the clip."""
    above, below, floor, ball = SCENES[scene % len(SCENES)]
    ramp = Image.linear_gradient("L").resize((width, height))
    image = Image.composite(Image.new("RGB", (width, height), below), Image.new("RGB", (width, height), above), ramp)
    pen = ImageDraw.Draw(image)
    ground, radius = int(height * 0.8), height // 9
    pen.rectangle((0, ground, width, height), fill=floor)
    x = width * (0.15 + 0.7 * place)
    y = ground - radius - abs(math.sin(math.pi * (3 * place + 0.35))) * height * 0.45
    shadow = radius * (1.1 - 0.5 * (ground - radius - y) / height)
    pen.ellipse((x - shadow, ground + 4, x + shadow, ground + 4 + shadow / 3), fill=above)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ball)
    return image


def redraw(site: Any, job: dict[str, Any], scene: int) -> None:
    """Put a drawn clip in the place of the stand-in's."""
    width, height = (int(side) for side in job["size"].split("x"))
    count, files = job["num_frames"], site.service.files
    frames = [np.asarray(draw(scene, index / count, width, height)) for index in range(count)]
    size: dict[str, Any] = {"width": width, "height": height, "num_frames": count, "frame_rate": 24.0}
    with Mp4Writer(files.path("clip", job["id"]), **size, sample_rate=None, metadata={}, overwrite=True) as writer:
        for frame in frames:
            writer.write_frames(frame[None])
    files.write(files.path("first_frame", job["id"]), webp(frames[count // 5]))


def preview(site: Any, job_id: str) -> None:
    """A rough preview: a few drawn moments side by side, very small, as early steps show them."""
    moments = [draw(1, place, 864, 480).resize((54, 30)).resize((216, 120)) for place in (0.1, 0.35, 0.6, 0.85)]
    site.service.files.write(
        site.service.files.path("preview", job_id), webp(np.hstack([np.asarray(m) for m in moments]))
    )


def shoot(page: Page, name: str, full: bool = False) -> None:
    """Store what the page shows, in few colours: the pictures stay small."""
    page.wait_for_function("() => [...document.images].every(image => image.complete)")
    page.evaluate("() => Promise.all([...document.images].map(image => image.decode().catch(() => 0)))")
    shown = Image.open(io.BytesIO(page.screenshot(full_page=full))).convert("RGB")
    shown.quantize(160, dither=Image.Dither.NONE).save(IMAGES / f"page-{name}.png", optimize=True)


def main() -> None:
    conftest = helpers()
    IMAGES.mkdir(parents=True, exist_ok=True)
    models = ("pro=fake:a?large=1&step=0.02", "lite=fake:b?large=1&step=8")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=conftest.chromium(), args=conftest.FLAGS)
        site = conftest.Site(browser, Path(folder), checkpoints=models, recipes=("exact", "trimmed"))
        try:
            take(site)
        finally:
            site.idle()
            site.stop()
            browser.close()


def take(site: Any) -> None:
    """Make jobs in every state and photograph the pages."""
    jobs = [site.api.run(prompt, seed=i + 1) for i, prompt in enumerate(PROMPTS)]
    for scene, job in enumerate(jobs):
        redraw(site, job, scene)
    running = site.api.create("Storm over a lighthouse, thunder rolls in from the left", model="lite")
    for prompt in ("A kettle starts to whistle in a quiet kitchen", "Rain on a tin roof, a cat looks out"):
        site.api.create(prompt)
    site.api.until(running["id"], lambda job: (job["step"] or 0) >= 4, seconds=90)
    wide, phone = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
    pair = f"/compare?clip={jobs[0]['id']}&clip={jobs[1]['id']}"
    for name, path, view, scheme in (
        ("create", "/", wide, "light"),
        ("create-dark", "/", wide, "dark"),
        ("phone", "/", phone, "light"),
        ("clips", "/clips", wide, "light"),
        ("compare", pair, wide, "dark"),
    ):
        preview(site, running["id"])
        page = site.open(path, viewport=view, color_scheme=scheme)
        page.wait_for_load_state("networkidle" if "compare" in name else "load")
        if name == "phone":
            page.locator("#running").scroll_into_view_if_needed()
            page.evaluate("() => document.getElementById('running').scrollIntoView()")
        shoot(page, name)
        page.close()


if __name__ == "__main__":
    main()
