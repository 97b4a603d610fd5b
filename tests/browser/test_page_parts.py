"""Parts of the page that need no browser: vendored files, words, the way back after the key, scores, the filter."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from yellowsound.serve.admission import Admission
from yellowsound.serve.errors import ApiError
from yellowsound.serve.page import static, words
from yellowsound.serve.page.form import to_api
from yellowsound.serve.page.key import _own
from yellowsound.serve.page.memory_plan import card_words, planned
from yellowsound.serve.served import open_models
from yellowsound.serve.settings import Settings

PAGE = Path(static.__file__).parent
# htmx.org 4.0.1 as published on the npm registry: dist/htmx.min.js, dist/ext/hx-sse.min.js and LICENSE
VENDORED = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "LICENSE-htmx.txt": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
}


def test_vendored_files_are_the_published_ones() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (PAGE / "static/vendor").iterdir()}
    assert found == VENDORED


def test_own_script_stays_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (PAGE / "static").glob("*.js")}
    assert sum(lines.values()) <= 250 and max(lines.values()) <= 150, lines


def test_templates_hold_no_script_style_or_handler() -> None:
    for path in (PAGE / "templates").glob("*.html"):
        text = path.read_text()
        assert " style=" not in text and "<style" not in text and " onclick=" not in text, path.name
        assert text.count("<script") == text.count("<script src="), path.name
        assert "//" not in text.replace("</", ""), f"{path.name} names another server"


def test_an_address_changes_with_its_content() -> None:
    digest = hashlib.sha256((PAGE / "static/page.css").read_bytes()).hexdigest()
    assert static.address("page.css") == f"/static/page.css?v={digest[:12]}"


@pytest.mark.parametrize("name", ["nothing.js", "../__init__.py", "vendor/../page.css", "templates/base.html"])
def test_only_known_files_are_static(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        static.read_static(name)
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "", "/a\r\nSet-Cookie: x"]
)
def test_the_key_leads_to_no_other_server(then: str) -> None:
    assert _own(then) == "/"


def test_the_key_leads_back_to_a_page() -> None:
    assert _own("/clips?q=a") == "/clips?q=a"


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, ""), (0.04, "0.0 s"), (9.9, "9.9 s"), (42.4, "42 s"), (89, "89 s"), (600, "10 min"), (7500, "2 h 5 min")],
)
def test_durations_in_words(value: float | None, said: str) -> None:
    assert words.seconds(value) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1536, "1.5 KiB"), (105 << 20, "105 MiB"), (1 << 40, "1.0 TiB")],
)
def test_sizes_in_words(count: int, said: str) -> None:
    assert words.size(count) == said


def test_a_long_prompt_is_one_short_line() -> None:
    assert words.short("a  b\nc") == "a b c"
    assert len(words.short("x" * 500)) == 90 and words.short("x" * 500).endswith("…")


def test_empty_fields_are_not_sent() -> None:
    raw = {"prompt": "a cat", "seed": "", "negative_prompt": " ", "size": "64x48", "seconds": "2", "custom_size": "9"}
    assert to_api(raw) == {"prompt": "a cat", "size": "64x48", "seconds": "2"}
    assert to_api({"prompt": "", "silent": "yes"}) == {"prompt": "", "generate_sound": "false"}
    assert to_api({"prompt": "a", "size": "other", "custom_size": "96x64"})["size"] == "96x64"


def test_the_memory_plan_is_the_one_that_admits_jobs(tiny_sft: Path) -> None:
    settings = Settings(checkpoints=(f"tiny={tiny_sft}",), device="cpu")
    models = open_models(settings)
    small = replace(models.default, defaults=replace(models.default.defaults, width=96, height=64, num_frames=9))
    admission = Admission(settings, models)
    found = planned(small, admission)
    assert found.plan is not None and (found.plan.geometry.width, found.plan.geometry.frames) == (96, 9)
    assert {row.label: row.count for row in found.plan.classes}["fused blocks"] == 4
    assert card_words(settings, admission) == "none; clips are made on the processor"


def test_what_fits_no_plan_says_why(tiny_sft: Path) -> None:
    settings = Settings(checkpoints=(f"tiny={tiny_sft}",), device="cpu", ram_bytes=1 << 20)
    models = open_models(settings)
    found = planned(models.default, Admission(settings, models))
    assert found.plan is None and "does not fit" in found.reason and "lacks" in found.reason
