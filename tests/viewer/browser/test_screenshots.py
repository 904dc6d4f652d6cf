"""Screenshots of the docs: each page is taken, and pages refer to images that are taken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from benchmarks.demo import screenshots
from benchmarks.demo.screenshots import PAGES, SIZE, THEMES, take, viewing
from tests.viewer.browser.runs import record

ROOT = Path(__file__).parents[3]


@pytest.mark.tooling
def test_each_page_is_taken_in_both_themes(browser: Browser, tmp_path: Path) -> None:
    with viewing(record(tmp_path / "sums").directory.root) as address:
        light = take(browser, address, tmp_path / "out", themes=["light"])
        dark = take(browser, address, tmp_path / "out", ["overview"], ["dark"])
    brightness = {}
    for path in [*light, *dark]:
        with Image.open(path) as image:
            assert image.size == SIZE
            colours = image.convert("RGB").quantize(256).getcolors() or []
            assert len(colours) > 20, path  # not a blank page
            brightness[path.stem] = image.convert("L").resize((1, 1)).getpixel((0, 0))
    assert set(brightness) == {*(f"{name}-light" for name in PAGES), "overview-dark"}
    assert brightness["overview-dark"] < 80 < 200 < brightness["overview-light"]


@pytest.mark.tooling
def test_a_page_without_what_it_should_show_ends_the_script(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screenshots, "_WAIT_MS", 2000)
    recorder = record(tmp_path / "sums")
    with viewing(recorder.directory.root) as address:
        shutil.rmtree(recorder.directory.annotations_folder)
        with pytest.raises(SystemExit, match=r"blame, light: table.blame td did not come"):
            take(browser, address, tmp_path / "out", ["blame"], ["light"])


def test_the_docs_show_images_that_the_script_takes() -> None:
    shown = {
        name
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for name in re.findall(r"images/([\w-]+)\.webp", page.read_text(encoding="utf-8"))
    }
    assert shown <= {f"{name}-{theme}" for name in PAGES for theme in THEMES}
    assert {
        "overview-light",
        "trajectory-tokens-light",
        "behaviour-light",
        "blame-light",
    } <= shown
