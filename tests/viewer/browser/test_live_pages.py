"""Pages that stay open: rows arrive, the server goes and comes, a run is moved, lists are long."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from agentrl.store import TrajectoryWriter
from agentrl.viewer.launch import Address
from tests.viewer.browser.conftest import Complaints, Open
from tests.viewer.browser.runs import Recorder
from tests.viewer.server.viewers import viewing


def test_rows_and_points_arrive_by_themselves(live: Recorder, open_page: Open) -> None:
    with viewing(live.directory.root) as address:
        page = open_page(address)  # a viewer of one run opens on it
        expect(page.locator(".chart").first).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.get_by_text("8 found", exact=True)).to_be_visible()

        with TrajectoryWriter(live.directory, writer="second") as writer:
            live.write(writer, 2)
            writer.flush()
            expect(page.get_by_text("16 found", exact=True)).to_be_visible()
            expect(page.locator(".grid-body [role=row]").first).to_contain_text("2")
        page.context.close()


def test_a_server_that_goes_is_said_and_asked_again(
    viewer: Address, open_page: Open, complaints: Complaints
) -> None:
    page = open_page(viewer)
    expect(page.locator("tbody tr")).to_have_count(3)
    banner = page.get_by_text("The server does not answer")

    page.context.set_offline(True)
    expect(banner).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(3)  # what was shown stays
    page.context.set_offline(False)
    expect(banner).to_have_count(0)
    assert complaints
    complaints.clear()


def test_a_run_that_is_moved_while_watched_is_named(
    live: Recorder, open_page: Open, tmp_path: Path, complaints: Complaints
) -> None:
    with viewing(tmp_path) as address:
        page = open_page(address)
        expect(page.locator(".chart").first).to_be_visible()

        live.directory.root.rename(tmp_path / "elsewhere")
        page.reload()

        expect(page.locator("[role=alert], .banner.bad").first).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("r")
        expect(page.locator("main")).to_contain_text("elsewhere")
        complaints.clear()
        page.context.close()


LONG_LIST = """async () => {
    const { render, h } = await import("/vendor/preact.js");
    const { useState } = await import("/vendor/hooks.js");
    const { Table, useBlocks } = await import("/ui/table.js");
    const asked = [];
    const load = async (offset, limit) => {
        asked.push(offset);
        const rows = Array.from({ length: limit }, (_, i) => ({ id: `row ${offset + i}` }));
        return { total: 100000, rows };
    };
    const columns = [{ name: "id", title: "Id", width: "1fr", cell: (row) => row.id }];
    function List() {
        const [active, onActive] = useState(-1);
        const blocks = useBlocks(load, "all", () => {}, (error) => { throw error; });
        return h(Table, { label: "Rows", columns, total: 100000, blocks, active, onActive,
                          sort: "", onSort() {}, onOpen() {} });
    }
    document.body.replaceChildren();
    document.body.className = "list-body";
    render(h(List), document.body);
    window.asked = asked;
}"""


def test_of_a_hundred_thousand_rows_those_in_sight_exist(viewer: Address, open_page: Open) -> None:
    page = open_page(viewer)
    page.evaluate(LONG_LIST)
    expect(page.locator(".grid-body [role=row]").first).to_contain_text("row 0")

    page.keyboard.press("End")
    expect(page.locator(".grid-row.active")).to_have_text("row 99999")
    page.keyboard.press("PageUp")
    expect(page.locator(".grid-row.active")).to_contain_text("row 999")
    page.locator(".grid").evaluate("box => box.scrollTo(0, 50000 * 30)")
    expect(page.locator(".grid-body")).to_contain_text("row 50001")

    assert page.evaluate("document.querySelectorAll('*').length") < 400
    assert page.evaluate("asked.length") <= 8


def test_eight_tabs_follow_one_run(live: Recorder, open_page: Open) -> None:
    # a browser has six connections to a server: with one a tab the seventh would wait for ever
    with viewing(live.directory.root) as address:
        first = open_page(address)
        expect(first.locator(".chart").first).to_be_visible()
        tabs = [first, *(first.context.new_page() for _ in range(7))]
        where = f"{first.url}/trajectories"
        for tab in tabs:
            tab.goto(where)
            expect(tab.get_by_text("8 found", exact=True)).to_be_visible()

        with TrajectoryWriter(live.directory, writer="second") as writer:
            live.write(writer, 2)
            writer.flush()
            for tab in tabs:
                expect(tab.get_by_text("16 found", exact=True)).to_be_visible()
        first.context.close()
