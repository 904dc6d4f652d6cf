"""Browser: Debian's Chromium for the figures of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import BrowserContext, sync_playwright

__all__ = ["FRAME", "VIEW", "chromium"]

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
VIEW = {"width": 1280, "height": 900}
WAIT_MS = 120_000
FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
"""Ends after the next frame."""


@contextmanager
def chromium() -> Iterator[BrowserContext]:
    """A browser of its own, without any tab yet, ended with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = browser.new_context(viewport=VIEW)  # type: ignore[arg-type]
        context.set_default_timeout(WAIT_MS)
        yield context
        browser.close()
