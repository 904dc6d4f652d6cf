"""A browser, and a page in which the viewer's pure modules can be called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, Page

from agentrl.viewer.launch import Address
from tests.kit.http import Files, serving
from tests.viewer.browser.trajectory.sample_run import write_sample_run
from tests.viewer.server.viewers import viewing

STATIC = Path(__file__).parents[4] / "agentrl" / "viewer" / "static"
Call = Callable[..., Any]


@pytest.fixture(scope="session")
def trajectory_browser(browser: Browser) -> Browser:
    return browser


@pytest.fixture(scope="session")
def static_address() -> Iterator[str]:
    """The static files alone, without a viewer's server."""
    with serving(partial(Files, directory=str(STATIC))) as address:
        yield address


@pytest.fixture(scope="session")
def module_page(trajectory_browser: Browser, static_address: str) -> Iterator[Page]:
    page = trajectory_browser.new_page()
    page.goto(f"{static_address}/icon.svg")
    yield page
    page.close()


@pytest.fixture
def in_module(module_page: Page) -> Call:
    """Evaluates ``body`` with the exports of ``path`` as ``m`` and the given value as ``given``."""

    def call(path: str, body: str, given: object = None) -> Any:
        function = f"async ([path, given]) => {{ const m = await import(path); {body} }}"
        return module_page.evaluate(function, [f"/trajectory/{path}", given])

    return call


@dataclass(frozen=True)
class Shown:
    """A run in the browser."""

    root: str
    key: str
    page: Page
    foreign: list[str]
    errors: list[str]

    def open(self, trajectory_id: str, wait: str | None = None, **params: object) -> Page:
        """Goes to a trajectory, and waits for ``wait``, by default the tab's name."""
        query = urlencode(params)
        path = f"/#/run/{self.key}/trajectory/{quote(trajectory_id, safe='')}?{query}"
        self.page.goto(f"{self.root}{path}")
        self.page.wait_for_selector(wait or f"h1:text-is('{trajectory_id}')")
        return self.page


@pytest.fixture(scope="session")
def run_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A viewer over the run of ``sample_run.py``."""
    folder = tmp_path_factory.mktemp("page") / "run"
    write_sample_run(folder)
    with viewing(folder) as address:
        yield address


@pytest.fixture
def shown(trajectory_browser: Browser, run_address: Address) -> Iterator[Shown]:
    """A fresh tab in the viewer; what it asks of other machines and what fails in it is kept."""
    root = f"http://127.0.0.1:{run_address.port}"
    context = trajectory_browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.set_default_timeout(30_000)
    foreign: list[str] = []
    errors: list[str] = []
    page.on(
        "request", lambda asked: None if own(asked.url, root) else foreign.append(asked.url)
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda said: errors.append(said.text) if said.type == "error" else None
    )
    page.goto(f"{root}/?token={run_address.token}")
    key = page.evaluate(
        "fetch('/api/runs').then((a) => a.json()).then((a) => a.runs[0].key)"
    )
    yield Shown(root, key, page, foreign, errors)
    context.close()


def own(url: str, root: str) -> bool:
    """Whether a request goes to the viewer, or nowhere."""
    return url.startswith((root, "data:", "blob:", "about:"))
