"""A real browser for the tests of pages: the system's Chromium, driven by Playwright.

    def test_something(browser):               # the fixture of tests/conftest.py
        page = browser.show(result.to_html())  # or browser.open("http://127.0.0.1:...")
        page.get_by_role("radio", name="words").click()

An error on the console of any page that a test opened fails the test.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium was found: install it (Debian: apt install chromium) or name it with CHROMIUM=/path/to/chromium"


def executable() -> str | None:
    """The browser of this machine."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started() -> Iterator[Any]:
    """A browser of Playwright, closed after the tests that share it."""
    from playwright.sync_api import sync_playwright

    found = executable()
    if found is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield chromium
        finally:
            chromium.close()


class Browser:
    """Opens pages for one test, and remembers the errors on their consoles."""

    def __init__(self, chromium: Any) -> None:
        self._chromium, self._contexts, self.complaints = chromium, [], []
        self._folder = tempfile.TemporaryDirectory(prefix="whence-pages-")

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False, **options: Any) -> Any:
        """A page of Playwright at an address; `options` are those of a new context."""
        options |= {"viewport": {"width": width, "height": height}, "color_scheme": "dark" if dark else "light"}
        context = self._chromium.new_context(**options)
        self._contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(address)
        return page

    def show(self, html: str, **options: Any) -> Any:
        """The page of a text of HTML, opened from a file as a reader would."""
        file = Path(self._folder.name) / f"page{len(self._contexts)}.html"
        file.write_text(html, encoding="utf-8")
        return self.open(file.as_uri(), **options)

    def close(self) -> None:
        """Close all pages, and fail where one had an error on its console."""
        for context in self._contexts:
            context.close()
        self._folder.cleanup()
        assert not self.complaints, self.complaints


def accessibility_faults(page: Any) -> list[str]:
    """What axe, a checker of accessibility, finds at fault: the rule, and the elements that break it."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{fault['id']}: {', '.join(node['html'][:120] for node in fault['nodes'][:3])}" for fault in found]


def overflow(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
