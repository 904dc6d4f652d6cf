"""What a run did not record is an ordinary page that says why and what brings it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from agentrl.viewer.launch import Address
from tests.store.kept_run import write_run
from tests.viewer.browser.conftest import Complaints, Open
from tests.viewer.server.viewers import Client, viewing

PARTS = {
    "/blame?step=1": "store.detail: tokens",
    "/trajectory/0-0-0?tab=state": "Env.snapshot()",
    "/trajectory/0-0-0?tab=judging": "Score(value, why)",
    "/trajectory/0-0-0?tab=tokens": "store.detail: full",
}
REFUSED = {
    "/trajectory/0-0-0?tab=rendered": "There is no exact text: the run keeps no tokenizer",
    "/trajectory/0-0-0?tab=retokenise": "Nothing is compared: the run keeps no tokenizer",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Address, str]]:
    """A viewer of a run that recorded little, and the run's key."""
    folder = tmp_path_factory.mktemp("bare") / "run"
    write_run(folder)
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    with viewing(folder) as address, Client(address) as client:
        yield address, client.get("/api/runs").json()["runs"][0]["key"]


def test_each_part_that_is_missing_names_what_brings_it(
    bare: tuple[Address, str], open_page: Open
) -> None:
    address, key = bare
    page = open_page(address)
    for path, setting in PARTS.items():
        page.goto(f"http://127.0.0.1:{address.port}/#/run/{key}{path}")
        told = page.locator("main").get_by_text(setting).first
        told.scroll_into_view_if_needed()
        expect(told).to_be_in_viewport()
        expect(page.get_by_role("alert").filter(has_text="store")).to_have_count(0)


def test_a_run_without_a_tokenizer_says_so_in_each_tab(
    bare: tuple[Address, str], open_page: Open, complaints: Complaints
) -> None:
    address, key = bare
    complaints.expect("status of 404")  # the browser's own line
    page = open_page(address)
    for path, text in REFUSED.items():
        page.goto(f"http://127.0.0.1:{address.port}/#/run/{key}{path}")
        expect(page.locator(".pane")).to_contain_text(text)
        expect(page.locator(".pane [role=alert]")).to_have_count(0)
