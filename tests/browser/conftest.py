"""A browser before a real server with the fake engine: every test gets a fresh page and a client of the same server.

When a page closes, its whole conversation is judged: no request left the server's origin, no script failed, and the
content policy refused nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

PATIENCE_MS = int(os.environ.get("PATIENCE_MS", "60000"))
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
]  # fmt: skip
expect.set_options(timeout=PATIENCE_MS)


def _server_helpers() -> ModuleType:
    """The helpers of the server tests, which know how to start a real server with fake engines."""
    name = "yellowsound_server_test_helpers"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "server" / "conftest.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def chromium() -> str:
    """The browser that is there, or a skip that says how to get one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium found: run scripts/install-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


class Site:
    """A running server, a client of its API, and pages before it."""

    def __init__(self, browser: Browser, folder: Path, key: str | None = None, **changes: Any) -> None:
        helpers = _server_helpers()
        self._browser = browser
        self.folder = folder
        self._running = helpers.RunningServer(helpers.fake_settings(folder, **{"page": True, **changes}))
        self.url: str = self._running.url
        self.service = self._running.service
        self.api = helpers.Api(self.url, self.service, key)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._contexts: list[BrowserContext] = []

    def open(self, path: str = "/", context: BrowserContext | None = None, **options: Any) -> Page:
        """A page at ``path``, in a context of its own unless one is given."""
        context = context or self.context(**options)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(self.url + path)
        return page

    def context(self, **options: Any) -> BrowserContext:
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        return context

    def idle(self) -> None:
        """Nothing of a test is left: no live job, no pause, no page."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        self.api.post("/v1/queue/resume")
        queue = self.api.get("/v1/queue").json()
        for job in queue["queued"] + queue["running"]:
            self.api.delete(f"/v1/videos/{job['id']}")

    def judge(self) -> None:
        """Every request stayed here, and the browser had nothing to complain about."""
        strangers = [u for u in self.requests if not u.startswith((self.url + "/", f"blob:{self.url}/"))]
        assert not strangers, strangers
        assert not self.complaints, self.complaints

    def stop(self) -> None:
        self.api.close()
        self._running.stop()

    def _console(self, message: ConsoleMessage) -> None:
        is_refusal = "Failed to load resource" in message.text or "htmx:response:error" in message.text
        if message.type in ("error", "warning") and not is_refusal:
            self.complaints.append(f"{message.type}: {message.text}")


StartSite = Callable[..., Site]


@pytest.fixture(scope="session")
def shared_site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    models = ("fake:k6", "fake:full?large=1")
    site = Site(browser, tmp_path_factory.mktemp("site"), checkpoints=models, recipes=("exact", "trimmed"))
    yield site
    site.stop()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """The server that tests share; afterwards its pages are judged."""
    shared_site.requests.clear()
    shared_site.complaints.clear()
    yield shared_site
    shared_site.idle()
    shared_site.judge()


@pytest.fixture
def start_site(browser: Browser, tmp_path: Path) -> Iterator[StartSite]:
    """A server with changed settings for one test."""
    sites: list[Site] = []

    def start(**changes: Any) -> Site:
        sites.append(Site(browser, tmp_path / f"site-{len(sites)}", **changes))
        return sites[-1]

    yield start
    for one in sites:
        one.idle()
        one.stop()
        one.judge()
