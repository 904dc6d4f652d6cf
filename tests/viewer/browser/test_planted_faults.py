"""The demo's planted faults: each is found from the overview by at most five clicks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from agentrl.viewer.demo import unpack_demo
from agentrl.viewer.launch import Address
from benchmarks.demo.planted import PlantedFault, planted_faults
from tests.viewer.browser.conftest import Complaints
from tests.viewer.conftest import WAIT_MS
from tests.viewer.server.viewers import Client, viewing

MOST_CLICKS = 5
FAULTS = {fault.name: fault for fault in planted_faults()}


class Visitor:
    """Goes through the demo by clicks alone, and counts them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    def look_here(self, text: str) -> None:
        """A line of the overview."""
        self.click(self.page.locator(".findings a", has_text=text))

    def noted(self, fault: PlantedFault, tab: str) -> None:
        """By the label of a note in the list's facets, then the trajectory's tab."""
        label = re.sub(r"\W+", "-", fault.name)
        self.click(self.page.get_by_role("link", name="Trajectories", exact=True))
        self.click(self.page.locator(".facet", has_text=label))
        expect(self.page.get_by_text("1 found", exact=True)).to_be_visible()
        self.row()
        self.click(self.page.get_by_role("link", name=tab, exact=True))

    def row(self) -> None:
        """The first row of the list."""
        self.click(self.page.locator(".grid-body [role=row] a").first)

    def sees(self, *found: Locator) -> None:
        """Every one of these is before the eyes."""
        for one in found:
            expect(one).to_be_in_viewport()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with viewing(unpack_demo(tmp_path_factory.mktemp("cache"))) as address:
        yield address


@pytest.fixture(scope="module")
def demo_page(browser: Browser, demo: Address) -> Iterator[tuple[Page, Complaints]]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    complaints = Complaints()
    complaints.of(page)
    page.goto(demo.link)
    yield page, complaints
    context.close()


@pytest.fixture
def visitor(demo: Address, demo_page: tuple[Page, Complaints]) -> Iterator[Visitor]:
    """Stands on the overview, where a viewer of one run opens."""
    page, complaints = demo_page
    with Client(demo) as client:
        [run] = client.get("/api/runs").json()["runs"]
    page.goto(f"http://127.0.0.1:{demo.port}/#/run/{run['key']}")
    expect(page.locator(".findings")).to_be_visible()
    yield Visitor(page)
    assert list(complaints) == []


def mismatched_token(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.look_here("in step 9 mismatch/logp_abs/max went from")
    page = visitor.page
    fact = page.locator(".tok-detail dl div", has_text="difference").locator("dd")
    visitor.sees(page.locator(".tok-text .sel"), fact)
    expect(page.locator("h1")).to_have_text(fault.link["id"])
    expect(fact).to_have_text("6 nats")


def costly_token(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.look_here("in step 11 policy/loss went from 0.00778 to 3")
    page = visitor.page
    first = page.locator("table.blame tbody tr").first
    expect(first.locator("td").first).to_have_text("3")
    expect(first).to_contain_text(fault.link["id"])
    visitor.click(first.locator(".words a"))
    expect(page.locator("h1")).to_have_text(fault.link["id"])
    expect(page.locator(".tok-bar select").first).to_have_value("token_loss")
    visitor.sees(page.locator(".tok-text .sel"))


def appearing_phrase(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.click(visitor.page.get_by_role("link", name="Behaviour", exact=True))
    row = visitor.page.locator("tbody tr", has_text="let me check that again").first
    visitor.sees(row, row.locator("svg.sparkline"))
    visitor.click(row.get_by_role("link", name="episode 1 of b"))
    visitor.sees(visitor.page.locator(".chat").get_by_text("let me check that again :"))


def failing_tool(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.look_here("in step 12 tool/python/error_frac went from")
    expect(visitor.page.locator("[data-search]")).to_have_value(re.compile("step:12"))
    visitor.row()
    visitor.sees(visitor.page.locator(".call-bad", has_text="ran longer than 5 s").first)


def marker_in_output(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.noted(fault, "Re-tokenise")
    named = visitor.page.locator(".difference", has_text="special token in text").first
    visitor.sees(named, named.get_by_text("<|im_end|>").first)


def other_split(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.noted(fault, "Re-tokenise")
    named = visitor.page.locator(".difference", has_text="other split").first
    visitor.sees(named, named.get_by_text("print").first)


def judged_answer(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.noted(fault, "Judging")
    part = visitor.page.get_by_role("group", name="judge", exact=True)
    visitor.sees(part.get_by_text("The assistant sounds sure of itself"))


def changed_state(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.noted(fault, "State")
    visitor.sees(visitor.page.get_by_role("button", name="notes.txt deleted"))


def newest_alert(visitor: Visitor, fault: PlantedFault) -> None:
    visitor.look_here("half of the calls of python timed out")
    expect(visitor.page.locator("h1")).to_have_text(fault.link["id"])
    visitor.sees(visitor.page.locator(".call-bad", has_text="ran longer than 5 s").first)


def dropped_group(visitor: Visitor, fault: PlantedFault) -> None:
    page = visitor.page
    visitor.click(page.get_by_role("link", name="for no_spread"))
    group = page.get_by_role("columnheader", name="group").get_by_role("button").first
    for order in ("descending", "ascending"):
        visitor.click(group)
        header = page.get_by_role("columnheader", name="Group")
        expect(header).to_have_attribute("aria-sort", order)
        expect(page.locator(".grid[aria-busy=false]")).to_be_visible()
    index = fault.link["group_index"]
    visitor.click(
        page.locator(".grid-body").get_by_role("link", name=str(index), exact=True).first
    )
    expect(page.locator("h1")).to_have_text(f"Group {index}")
    visitor.sees(
        page.get_by_text("not trained: no_spread"),
        page.get_by_text("No advantage is recorded: the group was not trained"),
    )


WAYS: dict[str, Callable[[Visitor, PlantedFault], None]] = {
    "mismatched token": mismatched_token,
    "costly token": costly_token,
    "appearing phrase": appearing_phrase,
    "failing tool": failing_tool,
    "marker in a tool's output": marker_in_output,
    "another split": other_split,
    "judge's reason": judged_answer,
    "changed state": changed_state,
    "alert": newest_alert,
    "dropped group": dropped_group,
}


def test_every_planted_fault_has_a_way() -> None:
    assert len(FAULTS) >= 10
    assert list(WAYS) == list(FAULTS)


@pytest.mark.parametrize("name", WAYS)
def test_a_planted_fault_is_reached_by_few_clicks(name: str, visitor: Visitor) -> None:
    WAYS[name](visitor, FAULTS[name])

    assert 0 < visitor.clicks <= MOST_CLICKS


def test_what_a_comparison_has_read_is_told_while_it_reads(visitor: Visitor) -> None:
    page = visitor.page
    visitor.click(page.get_by_role("link", name="Behaviour", exact=True))
    counts = page.get_by_role("status").filter(has_text="trajectories of a")
    expect(counts).to_be_visible()
    held: list[Route] = []
    page.route("**/behaviour?*", lambda route: held.append(route))
    page.reload()
    # the comparison before has told what there is to read
    whole = re.compile(r"(\S+) of \1 trajectories are read")
    told = page.get_by_role("status").filter(has_text=whole)
    expect(told.locator("progress")).to_be_visible()
    for route in held:
        route.continue_()
    expect(counts).to_be_visible()
    page.unroute("**/behaviour?*")


def test_a_finding_leads_to_its_first_episode_its_step_and_its_chart(
    visitor: Visitor,
) -> None:
    page = visitor.page
    lines = page.locator(".findings li")
    expect(lines).to_have_count(4)
    wrong = lines.filter(has_text="tool/python/error_frac")
    visitor.click(wrong.get_by_role("link", name="chart"))
    expect(page.get_by_label("Filter metrics by name")).to_have_value(
        "tool/python/error_frac"
    )
    visitor.sees(page.locator(".u-over").first)
    page.go_back()

    visitor.click(wrong.get_by_role("link", name="step 12", exact=True))
    expect(page.locator("h1")).to_have_text("Step 12")
    page.go_back()

    visitor.click(wrong.get_by_role("link", name="episode 1"))
    visitor.sees(page.locator(".call-bad", has_text="ran longer than 5 s").first)
    assert visitor.clicks == 3
