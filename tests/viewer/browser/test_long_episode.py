"""A long episode: what is in the document does not grow with the number of turns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from agentrl.viewer.launch import Address
from tests.viewer.browser.conftest import Open
from tests.viewer.browser.runs import record_long
from tests.viewer.server.viewers import Client, viewing

TURNS = 20_000
MOST_NODES = 2000


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, str]]:
    folder = tmp_path_factory.mktemp("long")
    record_long(folder / "long", TURNS)
    with viewing(folder) as address:
        with Client(address) as client:
            [run] = client.get("/api/runs").json()["runs"]
        yield address, f"#/run/{run['key']}/trajectory/0-3-0"


def test_a_place_of_the_timeline_leads_to_its_turn(
    long_run: tuple[Address, str], open_page: Open
) -> None:
    address, episode = long_run
    page = open_page(address, f"{episode}?tab=timeline")
    bars = page.locator(".bar-generation path")
    box = bars.bounding_box()
    assert box
    bars.click(position={"x": box["width"] / 2, "y": 4})

    # a turn a second: half of the time is half of the turns, give or take a pixel
    expect(page).to_have_url(re.compile("turn=(99|100)"))
    expect(page.locator(".bar .current").first).to_be_visible()


@pytest.mark.slow
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
        "Judging": ".judging",
        "State": ".files li",
        "Timeline": ".bar",
        "Raw": ".raw",
    }
    for tab, selector in ready.items():
        tabs = page.get_by_role("navigation", name="Views of the trajectory")
        tabs.get_by_role("link", name=tab, exact=True).click()
        page.locator(selector).first.wait_for()
        counts[tab] = page.evaluate("document.querySelectorAll('*').length")

    assert {tab: count for tab, count in counts.items() if count > MOST_NODES} == {}


@pytest.mark.parametrize("tab", ["chat", "rendered"])
def test_a_link_to_one_of_thousands_of_turns_leads_there(
    tab: str, long_run: tuple[Address, str], open_page: Open
) -> None:
    address, episode = long_run
    page = open_page(address, f"{episode}?tab={tab}&turn=16543")

    turn = page.locator("[data-turn='16543']")
    expect(turn).to_be_in_viewport()
    outline = page.locator(".outline [aria-current]")
    expect(outline).to_be_in_viewport()
    expect(outline).to_contain_text("16543")
    page.keyboard.press("j")
    expect(page.locator("[data-turn='16544']")).to_be_in_viewport()
    page.locator(".outline").press("End")
    expect(page.locator(".outline li").last).to_contain_text(str(TURNS - 1))
    # the list ends with the last turn, whose place is the sum of heights that were measured
    expect(page.locator(".outline li").last).to_be_in_viewport()
