"""A real browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True,
    "has_touch": True,
}  # fmt: skip
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window."""
    found = shutil.which("chromium")
    assert found, "chromium is missing: ./setup.sh installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Seen:
    """What a page complained of, and what it asked the network for."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []


@contextmanager
def opened(browser: Browser, path: Path, **settings: Any) -> Iterator[tuple[Page, Seen]]:
    """The page of a file, drawn; without any network."""
    context: BrowserContext = browser.new_context(offline=True, **settings)
    seen = Seen()
    try:
        page = context.new_page()
        page.on("console", lambda each: seen.complaints.append(f"{each.type}: {each.text}"))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda each: seen.requests.append(each.url))
        page.goto(path.as_uri())
        if settings.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn]", timeout=60_000)
        yield page, seen
    finally:
        context.close()
