"""A long episode: what is in the document does not grow with the number of turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from agentrl.viewer.launch import Address
from tests.viewer.browser.conftest import Open
from tests.viewer.browser.runs import record_long
from tests.viewer.server.viewers import Client, viewing

TURNS = 8000
MOST_NODES = 1500
MOST_BARS = 8000  # the timeline draws a line a place, each with its title


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, str]]:
    folder = tmp_path_factory.mktemp("long")
    record_long(folder / "long", TURNS)
    with viewing(folder) as address:
        with Client(address) as client:
            [run] = client.get("/api/runs").json()["runs"]
        yield address, f"#/run/{run['key']}/trajectory/0-3-0"


def test_no_tab_of_thousands_of_turns_fills_the_document(
    long_run: tuple[Address, str], open_page: Open
) -> None:
    address, episode = long_run
    page = open_page(address, episode)
    expect(page.locator(".outline li").first).to_contain_text("python")
    counts = {}
    ready = {
        "Chat": ".chat-turn",
        "Tokens": ".tok-block",
        "Rendered": ".rendered-turn",
        "Timeline": ".bar",
        "Raw": ".raw",
    }
    for tab, selector in ready.items():
        page.get_by_role("link", name=tab, exact=True).click()
        page.locator(selector).first.wait_for()
        counts[tab] = page.evaluate("document.querySelectorAll('*').length")

    assert counts.pop("Timeline") < MOST_BARS
    assert {tab: count for tab, count in counts.items() if count >= MOST_NODES} == {}


@pytest.mark.parametrize("tab", ["chat", "rendered"])
def test_a_link_to_one_of_thousands_of_turns_leads_there(
    tab: str, long_run: tuple[Address, str], open_page: Open
) -> None:
    address, episode = long_run
    page = open_page(address, f"{episode}?tab={tab}&turn=6543")

    turn = page.locator("[data-turn='6543']")
    expect(turn).to_be_in_viewport()
    outline = page.locator(".outline [aria-current]")
    expect(outline).to_be_in_viewport()
    expect(outline).to_contain_text("6543")
    page.keyboard.press("j")
    expect(page.locator("[data-turn='6544']")).to_be_in_viewport()
    page.locator(".outline").press("End")
    expect(page.locator(".outline li").last).to_contain_text(str(TURNS - 1))
    # the list ends with the last turn, whose place is the sum of heights that were measured
    expect(page.locator(".outline li").last).to_be_in_viewport()
