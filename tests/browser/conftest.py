"""A headless Chromium, and pages written to a folder that it opens from disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from otoscope.reports.html import render_html
from otoscope.reports.reported import Reported

DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" role="img"><title>{}</title></svg>'
"""Stands for a chart; what charts look like is tested where they are drawn."""
FIGURES = {language: {"categories": DRAWING.format(language)} for language in ("en", "zh")}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the browser: that of ``OTOSCOPE_TEST_CHROMIUM``, else the system's."""
    executable = os.environ.get("OTOSCOPE_TEST_CHROMIUM") or shutil.which("chromium")
    assert executable, "these tests need Chromium, for example Debian's package of that name"
    with sync_playwright() as playwright:
        # Containers seldom allow Chromium's sandbox, and its pages are the tests' own.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


class Pages:
    """Opens pages, and sees to it that none says anything to the console or asks for anything elsewhere."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def open(self, file: Path, *, fragment: str = "", **context: Any) -> Page:
        """Open a file in a context of its own and wait until its samples are there."""
        context.setdefault("viewport", {"width": 1280, "height": 900})
        page = self._browser.new_context(**context).new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri() + fragment)
        if page.locator("#samples").count():
            page.locator("#found:not(:empty)").wait_for()
        return page


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    """Open pages; at the end none may have complained or asked for anything that is not a file."""
    pages = Pages(browser)
    yield pages
    for context in browser.contexts:
        context.close()
    assert pages.complaints == []
    assert [url for url in pages.requests if not url.startswith(("file:", "data:"))] == []


WritePage = Callable[..., Path]


@pytest.fixture
def write_page(tmp_path: Path) -> WritePage:
    """Write the page of some runs."""

    def write(runs: Sequence[Reported], *, name: str = "report.html", **options: Any) -> Path:
        file = tmp_path / name
        options = {"language": "en", "figures": FIGURES, "now": "2026-11-30 12:00 UTC", **options}
        file.write_text(render_html(runs, folder=tmp_path, **options), encoding="utf-8")
        return file

    return write
