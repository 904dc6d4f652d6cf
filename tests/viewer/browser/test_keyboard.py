"""The keyboard alone, and addresses that hold what was chosen."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from agentrl.viewer.launch import Address
from tests.viewer.browser.conftest import Complaints, Open

Keys = Callable[[str], str]


def active(page: Page) -> str:
    return page.locator(".grid-row.active").inner_text().split("\n")[0]


def test_runs_are_opened_and_compared_by_keys(viewer: Address, open_page: Open) -> None:
    page = open_page(viewer)
    expect(page.locator("tbody tr")).to_have_count(3)

    for key in ("j", "x", "j", "x", "c"):
        page.keyboard.press(key)

    expect(page).to_have_url(re.compile(r"#/compare\?runs=\w+%2C\w+$"))
    for key in ("g", "r"):
        page.keyboard.press(key)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation")).to_be_visible()


def test_pages_are_reached_by_g_and_a_letter(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}")
    expect(page.locator(".chart").first).to_be_visible()

    for letter, title in (
        ("m", "Metrics"),
        ("t", "Trajectories"),
        ("b", "Behaviour"),
        ("l", "Blame"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page.locator("h1")).to_have_text(title)
        expect(page.locator("nav [aria-current=page]")).to_have_text(title)
        expect(page.locator("main")).to_be_focused()


def test_help_lists_the_keys_of_the_page(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/trajectories")
    expect(page.locator(".grid-body [role=row]").first).to_be_visible()

    page.keyboard.press("?")

    help_ = page.get_by_role("dialog")
    for text in ("next row", "open the row", "these keys", "Blame", "search"):
        expect(help_).to_contain_text(text)
    page.keyboard.press("Escape")
    expect(help_).to_have_count(0)


def test_search_takes_a_query_and_the_address_keeps_it(
    viewer: Address, open_page: Open, key_of: Keys, complaints: Complaints
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}")
    expect(page.locator(".chart").first).to_be_visible()
    page.keyboard.press("/")  # a page without a search of its own leads to the list
    field = page.get_by_label("Query", exact=True)
    expect(field).to_be_focused()

    page.keyboard.type("reward<0.5 step:2..3")
    expect(page.get_by_text("8 found", exact=True)).to_be_visible()
    assert "query=reward%3C0.5+step%3A2..3" in page.url
    page.reload()
    expect(page.get_by_text("8 found", exact=True)).to_be_visible()
    expect(field).to_have_value("reward<0.5 step:2..3")

    complaints.expect("status of 400")  # the browser logs that rows and facets are refused
    field.fill("rewrad<0.5")
    expect(page.locator("#query-error")).to_contain_text("reward")
    field.fill("reward<0.5")
    expect(page.get_by_text("24 found", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(field).not_to_be_focused()
    assert complaints.met


def test_a_query_typed_slowly_is_kept_as_typed(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/trajectories")
    field = page.get_by_label("Query", exact=True)

    field.press_sequentially("reward<0.5 ")
    expect(page).to_have_url(re.compile("query=reward%3C0.5"))
    expect(page.get_by_text("24 found", exact=True)).to_be_visible()
    expect(field).to_have_value("reward<0.5 ")  # the blank before the next term
    field.press_sequentially("step:2..3")
    expect(page.get_by_text("8 found", exact=True)).to_be_visible()
    page.go_back()
    expect(field).to_have_value("reward<0.5")
    page.go_forward()
    expect(field).to_have_value("reward<0.5 step:2..3")


def test_a_wish_for_the_page_that_is_left_is_dropped(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/trajectories")
    expect(page.get_by_text("48 found", exact=True)).to_be_visible()

    # as a timer of the query box does, between a click on a link and the browser's event of it
    left = page.evaluate(
        """async (key) => {
        const { update } = await import("/lib/router.js");
        const once = { once: true };
        const followed = new Promise((done) => addEventListener("hashchange", done, once));
        location.hash = `#/run/${key}/behaviour`;
        update({ query: "step:1" }, { replace: false });
        await followed;
        return location.hash;
    }""",
        key_of("sums"),
    )

    assert left.endswith("/behaviour")
    expect(page.locator("h1")).to_have_text("Behaviour")


def test_both_ends_of_a_long_id_are_read(viewer: Address, open_page: Open) -> None:
    page = open_page(viewer)
    page.evaluate("""async () => {
        const { render, h } = await import("/vendor/preact.js");
        const { EndsName } = await import("/ui/name.js");
        const names = ["rl/code_sharpened/after/sampled/11-0-0", "held_out-11", "n".repeat(300)];
        document.body.replaceChildren();
        const style = { width: "110px" };
        const cells = names.map((text) => h("p", { style }, h(EndsName, { text })));
        render(h("div", null, cells), document.body);
    }""")

    for number, (head, tail) in enumerate(
        [("rl/code", "/11-0-0"), ("", ""), ("nnn", "nnnnnn…")]
    ):
        name = page.locator("bdi").nth(number)
        assert name.bounding_box()["width"] <= 110  # type: ignore[index]
        if tail:
            expect(name.locator(".ends-tail")).to_have_text(re.compile(f"{tail}$"))
            expect(name.locator(".ends-head")).to_have_text(re.compile(f"^{head}"))
            wide = "one => one.getBoundingClientRect().width"
            assert name.locator(".ends-tail").evaluate(wide) > 30
            assert name.locator(".ends-head").evaluate(wide) > 30
            expect(name).to_have_attribute("title", re.compile(f"^{head}"))


def test_rows_are_walked_sorted_and_opened_by_keys(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    key = key_of("sums")
    page = open_page(viewer, f"#/run/{key}/trajectories?sort=id")
    expect(page.locator(".grid-body [role=row]").first).to_contain_text("10-0-0")

    page.keyboard.press("j")
    assert active(page) == "10-0-0"
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert active(page) == "10-1-0"
    page.keyboard.press("End")
    assert active(page) == "9-3-0"
    page.keyboard.press("Home")
    assert active(page) == "10-0-0"
    assert page.locator("[role=grid]").get_attribute("aria-rowcount") == "49"

    page.get_by_role("button", name="reward", exact=True).click()
    expect(page.get_by_role("columnheader", name="reward")).to_have_attribute(
        "aria-sort", "descending"
    )
    assert "sort=-reward" in page.url
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("End")
    page.keyboard.press("x")
    page.keyboard.press("d")
    expect(page.locator("h1")).to_have_text("Diff")
    page.go_back()
    page.keyboard.press("Home")
    name = active(page)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"#/run/{key}/trajectory/{name}"))


def test_the_theme_is_turned_and_kept(viewer: Address, open_page: Open) -> None:
    page = open_page(viewer, color_scheme="light")

    page.keyboard.press("T")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    page.wait_for_selector("h1")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_facets_and_histograms_narrow_the_list(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/trajectories")
    expect(page.get_by_text("48 found", exact=True)).to_be_visible()

    rewards = page.get_by_role("group", name=re.compile("^reward"))
    rewards.get_by_role("button").first.click()
    expect(page.get_by_text("24 found", exact=True)).to_be_visible()
    assert "reward%3E%3D0" in page.url
    rewards.get_by_role("button").first.click()
    expect(page.get_by_text("48 found", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_text("24 found", exact=True)).to_be_visible()


def test_columns_are_chosen_and_kept_in_the_address(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/trajectories")
    add = page.get_by_label("Add a column")
    expect(page.locator("#known-columns option[value=final]")).to_be_attached()
    for name in ("final", "version", "reward.correct"):
        if page.locator(f"#known-columns option[value='{name}']").count():
            add.fill(name)
            expect(page.get_by_role("columnheader", name=name, exact=True)).to_be_visible()
    assert "columns=" in page.url
    page.get_by_role("button", name="version", exact=True).click()
    header = page.get_by_role("columnheader", name="version", exact=True)
    expect(header).to_have_attribute("aria-sort", "descending")
    page.reload()
    expect(header).to_have_attribute("aria-sort", "descending")
    page.get_by_label("Without the column step").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="step", exact=True)).to_have_count(0)
    place = page.get_by_role("columnheader").evaluate_all(
        "all => all.findIndex((one) => one.textContent.startsWith('final'))"
    )
    cell = page.locator(".grid-body [role=row]").first.locator("[role=gridcell]").nth(place)
    expect(cell).to_contain_text(re.compile(r"\S{2}"))


def test_a_group_is_read_by_keys(viewer: Address, open_page: Open, key_of: Keys) -> None:
    key = key_of("sums")
    page = open_page(viewer, f"#/run/{key}/group/2")
    expect(page.locator(".look.first").first).to_be_visible()

    # rollouts 1 and 3 part from the first at 6*8; 2 nowhere
    cells = page.locator("tbody tr td:nth-child(9)")
    expect(cells).to_have_text(
        ["", re.compile("turn 0, token"), "nowhere", re.compile("turn 0, token")]
    )
    status = page.locator(".alignment-head [role=status]")
    expect(status).to_contain_text("at 1")
    page.keyboard.press("n")
    expect(status).to_contain_text("at 2")
    page.keyboard.press("f")
    expect(status).to_contain_text("at 1")

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page).to_have_url(re.compile("reference=2-1-0"))
    expect(cells.nth(1)).to_have_text("")
    expect(cells.nth(0)).to_contain_text("turn 0")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"#/run/{key}/trajectory/2-1-0"))


def test_a_point_of_a_chart_opens_its_step(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/metrics")
    plot = page.get_by_role("application").first
    expect(page.locator(".chart canvas").nth(5)).to_be_visible()
    plot.focus()

    for key in ("End", "ArrowLeft", "Enter"):
        page.keyboard.press(key)

    expect(page).to_have_url(re.compile(r"/step/5$"))
    page.go_back()
    plot.click(position={"x": 60, "y": 60})  # the first point is the nearest
    expect(page).to_have_url(re.compile(r"/step/1$"))
