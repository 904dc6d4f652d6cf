"""Nine questions about a run: each is answered by at most four clicks, without SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from agentrl.viewer.launch import Address
from tests.viewer.browser.conftest import Open
from tests.viewer.browser.detective_run import (
    CALLS_STEP,
    COSTLY,
    HACK_STEP,
    LOSS_STEP,
    PRAISE,
    SPLIT,
    STALE,
    TASKS,
    DetectiveRun,
)
from tests.viewer.browser.test_planted_faults import Visitor
from tests.viewer.server.viewers import Client, viewing

MOST_CLICKS = 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    folder = tmp_path_factory.mktemp("detective")
    DetectiveRun(folder / "suspect").record()
    DetectiveRun(folder / "other", lr=2e-3).record()
    with viewing(Path(folder)) as address:
        yield address


@pytest.fixture
def visitor(runs: Address, open_page: Open) -> Visitor:
    """Stands on the overview of the run."""
    with Client(runs) as client:
        keys = {run["name"]: run["key"] for run in client.get("/api/runs").json()["runs"]}
    page = open_page(runs, f"#/run/{keys['suspect']}")
    expect(page.locator(".findings")).to_be_visible()
    return Visitor(page)


def tab(visitor: Visitor, name: str) -> None:
    visitor.click(visitor.page.get_by_role("link", name=name, exact=True))


def largest_drop_of_a_task(visitor: Visitor) -> None:
    tab(visitor, "Tasks")
    row = visitor.page.get_by_role("region", name="Regressions").locator("tbody tr").first
    expect(row).to_contain_text("sum-1")
    visitor.click(row.get_by_role("link", name="sum-1"))
    # its course says between which two versions
    visitor.sees(visitor.page.get_by_role("heading", name="Task sum-1"))
    expect(visitor.page.locator(".charts")).to_contain_text("Reward")


def onset_of_wrong_calls(visitor: Visitor) -> None:
    visitor.look_here(f"from step {CALLS_STEP} on tool/python/error_frac went from")
    visitor.row()
    visitor.sees(visitor.page.locator(".call-bad", has_text="boom").first)


def tokens_with_the_largest_loss(visitor: Visitor) -> None:
    visitor.look_here(f"in step {LOSS_STEP} policy/loss went from")
    first = visitor.page.locator("table.blame tbody tr").first
    expect(first).to_contain_text(COSTLY)
    visitor.click(first.locator(".words a"))
    visitor.sees(visitor.page.locator(".tok-text .sel"))


def two_runs_compared(visitor: Visitor) -> None:
    page = visitor.page
    visitor.click(page.get_by_role("link", name="agentrl", exact=True))
    for name in ("suspect", "other"):
        visitor.click(page.get_by_role("checkbox", name=f"Compare {name}"))
    visitor.click(page.get_by_role("button", name="Compare 2"))
    expect(page.get_by_text("optim.lr").first).to_be_visible()


def truncated_and_why(visitor: Visitor) -> None:
    tab(visitor, "Trajectories")
    visitor.click(visitor.page.locator(".facet", has_text="max_turns"))
    expect(visitor.page.get_by_text(f"{TASKS} found", exact=True)).to_be_visible()
    visitor.row()
    visitor.sees(visitor.page.get_by_text("truncated (max_turns)").first)


def reward_hacking(visitor: Visitor) -> None:
    tab(visitor, "Behaviour")
    row = visitor.page.locator("tbody tr", has_text=PRAISE).first
    # it pays, and it began at once
    expect(row.get_by_role("link", name=str(HACK_STEP), exact=True)).to_be_visible()
    with_it, without = (row.locator("td").nth(place).inner_text() for place in (8, 9))
    assert float(with_it) > float(without)
    visitor.click(row.get_by_role("link", name="episode 1 of b"))
    tab(visitor, "Judging")
    visitor.sees(visitor.page.get_by_role("group", name="judge", exact=True))


def retokenisation_mismatch(visitor: Visitor) -> None:
    page = visitor.page
    tab(visitor, "Trajectories")
    expect(page.locator("#known-columns option[value=retok_frac]")).to_be_attached()
    page.get_by_label("Add a column").fill("retok_frac")
    visitor.click(
        page.get_by_role("columnheader", name="retok_frac").get_by_role("button").first
    )
    expect(page.locator(".grid-body [role=row] a").first).to_have_text(SPLIT)
    visitor.row()
    tab(visitor, "Re-tokenise")
    visitor.sees(page.locator(".difference", has_text="<end>").first)


def stale_weights(visitor: Visitor) -> None:
    tab(visitor, "Trajectories")
    bars = visitor.page.get_by_role("group", name="staleness:").locator("button:enabled")
    visitor.click(bars.last)
    expect(visitor.page.get_by_text("1 found", exact=True)).to_be_visible()
    expect(visitor.page.locator(".grid-body [role=row] a").first).to_have_text(STALE)


def evidence_for_a_colleague(visitor: Visitor) -> None:
    tokens_with_the_largest_loss(visitor)
    shown = visitor.page.locator(".tok-text .sel").inner_text()
    colleague = visitor.page.context.new_page()
    colleague.goto(visitor.page.url)
    expect(colleague.locator(".tok-text .sel")).to_have_text(shown)
    colleague.close()


QUESTIONS: tuple[Callable[[Visitor], None], ...] = (
    largest_drop_of_a_task,
    onset_of_wrong_calls,
    tokens_with_the_largest_loss,
    two_runs_compared,
    truncated_and_why,
    reward_hacking,
    retokenisation_mismatch,
    stale_weights,
    evidence_for_a_colleague,
)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.__name__)
def test_a_question_is_answered_by_few_clicks(
    question: Callable[[Visitor], None], visitor: Visitor
) -> None:
    question(visitor)
    assert 0 < visitor.clicks <= MOST_CLICKS
