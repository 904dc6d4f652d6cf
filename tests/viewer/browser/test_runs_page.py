"""The table of runs: chosen columns, order, filter and tags; settings that differ."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.viewer.browser.conftest import Open
from tests.viewer.browser.runs import record_two_stages
from tests.viewer.browser.test_pages import keys_of
from tests.viewer.server.viewers import viewing


def test_runs_have_chosen_columns_and_tags_by_which_they_are_found(
    tmp_path: Path, open_page: Open
) -> None:
    for name, lr in (("low", 0.001), ("high", 0.01)):
        record_two_stages(tmp_path / name, lr, 1)
    record_two_stages(tmp_path / "torn", 0.1, 1).config_path.write_text("{run: [")
    with viewing(tmp_path) as address:
        page = open_page(address)
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3)
        # its own row says so, and no other
        expect(rows.filter(has_text="it is no YAML")).to_have_count(1)
        add = page.get_by_label("Add a column")
        add.focus()
        expect(page.locator("#known-columns option").first).to_be_attached()
        for name in ("setting:stages.rl.optim.lr", "metric:reward/mean"):
            add.fill(name)
            expect(add).to_have_value("")
        page.get_by_role("button", name="reward/mean", exact=True).click()
        expect(rows.locator("td:nth-child(2) a")).to_have_text(["low", "high", "torn"])

        tag = page.get_by_label("Tag of high")
        tag.fill("best")
        tag.press("Enter")
        expect(rows.nth(1)).to_contain_text("best")
        search = page.get_by_label("Filter runs")
        search.fill("optim.lr<0.05 tag:best")
        expect(rows).to_have_count(1)
        page.reload()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("0.010.5")
        page.get_by_label("Take back the tag best").click()
        expect(page.locator("main")).to_contain_text("No run fits the filter")
        search.fill("nonsense>1")
        expect(page.locator("#runs-error")).to_contain_text("no column nonsense is shown")

        keys = keys_of(address)
        page.goto(
            f"http://127.0.0.1:{address.port}/#/run/{keys['low']}/settings?with={keys['high']}"
        )
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("stages.rl.optim.lr0.0010.01")
        page.get_by_label("Differences from").select_option("torn")
        expect(page.get_by_role("alert").last).to_contain_text("torn: ")
        page.context.close()
