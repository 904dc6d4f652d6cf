"""A viewer over real runs, and pages that fail a test by what the browser says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from agentrl.store import RunDirectory
from agentrl.viewer.launch import Address
from tests.viewer.browser.runs import HOSTILE, Recorder, record
from tests.viewer.conftest import WAIT_MS
from tests.viewer.server.viewers import Client, viewing

Open = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary run, a hostile one, and one without any trajectory; read alone."""
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "sums")
    record(folder / "<img src=x onerror=hacked()> \u202eeman", HOSTILE, steps=2)
    RunDirectory.create(folder / "empty", {"seed": 0})
    return folder


@pytest.fixture(scope="session")
def viewer(runs_folder: Path) -> Iterator[Address]:
    with viewing(runs_folder) as address:
        yield address


@pytest.fixture
def live(tmp_path: Path) -> Recorder:
    """A run of one step of one's own, to be written on."""
    return record(tmp_path / "live", steps=1)


class Complaints(list[str]):
    """What the browser said in the console, and what broke in the page, but for what is expected:
    a page has several requests on their way, so what one mistake brings comes at several times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: tuple[str, ...] = ()
        self.met: list[str] = []
        """What came of the expected."""

    def of(self, page: Page) -> None:
        """Listens to a page."""
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on(
            "console",
            lambda told: (
                self._note(f"{told.type}: {told.text}")
                if told.type in ("error", "warning")
                else None
            ),
        )

    def expect(self, text: str) -> None:
        """From now on a complaint with this text is as it should be."""
        self.texts += (text,)

    def _note(self, complaint: str) -> None:
        expected = any(text in complaint for text in self.texts)
        (self.met if expected else self).append(complaint)


@pytest.fixture
def complaints() -> Complaints:
    """What was complained of so far; a test says what it expects."""
    return Complaints()


@pytest.fixture
def open_page(browser: Browser, complaints: Complaints) -> Iterator[Open]:
    """Opens a page of a viewer: by the printed link, then at ``hash_``.

    At the end no page may have had an error in its console, a violation of the
    Content-Security-Policy among them, nor have run what the data says.
    """
    contexts = []
    pages = []

    def opened(address: Address, hash_: str = "#/", **options: object) -> Page:
        settings = {"viewport": {"width": 1440, "height": 900}, **options}
        context = browser.new_context(**settings)  # type: ignore[arg-type]
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        pages.append(page)
        complaints.of(page)
        page.goto(address.link)
        page.wait_for_selector("main")
        if hash_ != "#/":
            page.goto(f"http://127.0.0.1:{address.port}/{hash_}")
        return page

    yield opened
    shown = [page for page in pages if not page.is_closed()]
    hacked = [page.url for page in shown if page.evaluate("'hacked' in window")]
    for context in contexts:
        context.close()
    assert hacked == []
    assert list(complaints) == []


@pytest.fixture
def key_of(viewer: Address) -> Callable[[str], str]:
    """The key of a run by the beginning of its name."""

    def found(name: str) -> str:
        with Client(viewer) as client:
            runs = client.get("/api/runs").json()["runs"]
        return next(run["key"] for run in runs if run["name"].startswith(name))

    return found
