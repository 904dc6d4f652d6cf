"""Pages that stay open: rows arrive, the server goes and comes, a run is moved, lists are long."""

from __future__ import annotations

import re
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


def test_points_arrive_on_the_overview_and_a_zoom_stays(
    live: Recorder, open_page: Open
) -> None:
    for step in (2, 3, 4):
        live.metrics(step)
    with viewing(live.directory.root) as address:
        page = open_page(address)
        plot = page.get_by_role("application", name=re.compile("^reward.mean:"))
        expect(plot).to_have_attribute(
            "aria-label", re.compile("4 points by step; .*0.5 now")
        )
        over = plot.locator(".u-over")
        box = over.bounding_box()
        assert box
        x, y, width = box["x"], box["y"] + 20, box["width"]
        page.mouse.move(x + 2, y)
        page.mouse.down()
        page.mouse.move(x + width * 0.4, y, steps=3)  # steps 1 to 2.2
        page.mouse.up()
        shown = page.locator(".chart", has=plot).locator(".legend .muted")
        page.mouse.move(x + width - 4, y)
        expect(shown).to_have_text("step 2")

        live.metrics(5)

        expect(plot).to_have_attribute(
            "aria-label", re.compile("5 points by step; .*0.55 now")
        )
        page.mouse.move(x + width - 5, y)
        expect(shown).to_have_text("step 2")
        page.mouse.dblclick(x + width / 2, y)  # all of it again
        page.mouse.move(x + width - 4, y)
        expect(shown).to_have_text("step 5")
        page.context.close()


def test_the_active_row_stays_itself_as_rows_arrive(
    live: Recorder, open_page: Open
) -> None:
    with viewing(live.directory.root) as address:
        page = open_page(address)
        expect(page.locator(".chart").first).to_be_visible()
        page.goto(f"{page.url}/trajectories?row=2")
        active = page.locator(".grid-row.active")
        expect(active).to_be_visible()
        expect(active.locator("a").first).not_to_be_empty()
        name = active.locator("a").first.inner_text()

        with TrajectoryWriter(live.directory, writer="second") as writer:
            live.write(writer, 2)
            writer.flush()
            expect(page.get_by_text("16 found", exact=True)).to_be_visible()
            expect(page).to_have_url(re.compile("row=10"))
            expect(active.locator("a").first).to_have_text(name)
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_have_text(name)
        page.context.close()


def test_a_server_that_goes_is_said_and_asked_again(
    viewer: Address, open_page: Open, complaints: Complaints
) -> None:
    page = open_page(viewer)
    expect(page.locator("tbody tr")).to_have_count(3)
    banner = page.get_by_text("The server does not answer")

    complaints.expect("net::ERR_INTERNET_DISCONNECTED")
    page.context.set_offline(True)
    expect(banner).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(3)  # what was shown stays
    page.context.set_offline(False)
    expect(banner).to_have_count(0)
    assert complaints.met


def test_a_run_that_is_moved_while_watched_is_named(
    live: Recorder, open_page: Open, tmp_path: Path, complaints: Complaints
) -> None:
    with viewing(tmp_path) as address:
        page = open_page(address)
        expect(page.locator(".chart").first).to_be_visible()

        complaints.expect("status of 404")
        live.directory.root.rename(tmp_path / "elsewhere")
        page.reload()

        expect(page.locator("[role=alert], .banner.bad").first).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("r")
        expect(page.locator("main")).to_contain_text("elsewhere")
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


def test_of_a_hundred_thousand_rows_those_in_sight_exist(
    viewer: Address, open_page: Open
) -> None:
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


ROWS_ABOVE = """async () => {
    const { render, h } = await import("/vendor/preact.js");
    const { useState } = await import("/vendor/hooks.js");
    const { Table, useBlocks } = await import("/ui/table.js");
    const { useCursor } = await import("/ui/cursor.js");
    const { Draft } = await import("/ui/draft.js");
    let above = 0;
    const load = async (offset, limit) => ({
        total: 1000 + above,
        rows: Array.from({ length: limit }, (_, i) => ({ id: `row ${offset + i - above}` })),
    });
    const columns = [{ name: "id", title: "Id", width: "1fr", cell: (row) => row.id }];
    const names = ["one", "two", "three"];
    function List() {
        const [total, setTotal] = useState(1000);
        const fail = (error) => { throw error; };
        const blocks = useBlocks(load, "all", (page) => setTotal(page.total), fail);
        const [at, setAt] = useCursor({ scope: "Names", count: names.length, onOpen() {},
                                        keyOf: (index) => names[index] });
        window.come = () => { above += 3; names.unshift("zero"); blocks.refresh(); };
        window.choose = setAt;
        return h("div", null,
            h("p", { id: "chosen" }, names[at] ?? "none"),
            h(Draft, { id: "draft", value: "1..2", onDone() {} }),
            h("div", { style: { height: "400px", display: "grid" } },
              h(Table, { label: "Rows", columns, total, blocks, active: -1, onActive() {},
                         sort: "", onSort() {}, onOpen() {} })));
    }
    document.body.replaceChildren();
    render(h(List), document.body);
}"""


def test_what_comes_moves_neither_the_view_nor_the_choice_nor_a_draft(
    viewer: Address, open_page: Open
) -> None:
    page = open_page(viewer)
    page.evaluate(ROWS_ABOVE)
    grid = page.locator(".grid")
    expect(page.locator(".grid-body")).to_contain_text("row 5")
    grid.evaluate("box => box.scrollTo(0, 500 * 30)")
    row = page.locator("[role=row]", has_text="row 505")
    expect(row).to_be_visible()
    before = row.bounding_box()
    page.evaluate("choose(1)")
    expect(page.locator("#chosen")).to_have_text("two")
    page.locator("#draft").press("End")
    page.locator("#draft").press_sequentially("0")

    page.evaluate("come()")

    expect(grid).to_have_attribute("aria-rowcount", "1004")
    assert row.bounding_box() == before
    expect(page.locator("#chosen")).to_have_text("two")
    expect(page.locator("#draft")).to_have_value("1..20")
    grid.evaluate("box => box.scrollTo(0, 0)")
    expect(page.locator(".grid-body [role=row]").first).to_contain_text("row -3")
    page.evaluate("come()")  # at the top new rows are let in
    expect(page.locator(".grid-body [role=row]").first).to_contain_text("row -6")


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
