"""Every page: it opens on a real run, complains of nothing, and is fit for readers of screens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from agentrl.viewer.launch import Address
from tests.kit.marks import wide_but
from tests.viewer.browser.conftest import Complaints, Open
from tests.viewer.browser.runs import HOSTILE, record_two_stages
from tests.viewer.server.viewers import Client, viewing

AXE = (Path(__file__).parents[1] / "vendor" / "axe.js").read_text()
COLOURED = """() => Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) => {
    const canvas = chart.querySelector("canvas");
    const drawn = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const isColoured = (i) => i % 4 === 0 && Math.abs(drawn[i] - drawn[i + 2]) > 60;
    const coloured = [...drawn.keys()].filter(isColoured);
    return [chart.querySelector("h3").title, coloured.length];
}))"""
"""How many pixels of each chart are no grey, by its title."""
PAGES = {
    "runs": ("#/", "sums"),
    "overview": ("#/run/KEY", "Look here"),
    "metrics": ("#/run/KEY/metrics?x=time&smooth=0.5&pins=turns/mean", "policy/entropy"),
    "trajectories": ("#/run/KEY/trajectories", "48 found"),
    "query that is none": ("#/run/KEY/trajectories?query=nonsense%3A1", "nonsense"),
    "timeline": ("#/run/KEY/timeline?first=2&last=4", "No step from 2 to 4 has times"),
    "step": ("#/run/KEY/step/2", "No times of its episodes are recorded"),
    "group": ("#/run/KEY/group/2", "First divergence"),
    "task": ("#/run/KEY/task/sum-1", "Diff of a against b"),
    "diff": ("#/run/KEY/diff?a=2-0-0&b=2-1-0", "differing stretches"),
    "tasks": ("#/run/KEY/tasks", "Solved at last"),
    "behaviour": ("#/run/KEY/behaviour", "Phrases"),
    "blame": ("#/run/KEY/blame?signal=mismatch", "The parts of mismatch"),
    "settings": ("#/run/KEY/settings", "stages.rl.train.steps"),
    "compare": ("#/compare?runs=KEY,OTHER", "What differs"),
    "no page": ("#/nowhere", "No page has this address"),
}

Keys = Callable[[str], str]


def violations(page: Page) -> list[str]:
    """What axe-core finds, each with the first element that it is about."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


@pytest.mark.parametrize("scheme", wide_but({"light"}, ["light", "dark"]))
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_and_axe_finds_nothing(
    name: str,
    scheme: str,
    viewer: Address,
    open_page: Open,
    key_of: Keys,
    complaints: Complaints,
) -> None:
    hash_, text = PAGES[name]
    if name == "query that is none":
        complaints.expect("status of 400")
    hash_ = hash_.replace("KEY", key_of("sums")).replace("OTHER", key_of("empty"))
    page = open_page(viewer, hash_, color_scheme=scheme)

    expect(page.locator("main")).to_contain_text(text)
    expect(page.get_by_text("Loading…")).to_have_count(0)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert violations(page) == []


@pytest.mark.parametrize(
    "page_name",
    ["", "/metrics", "/timeline", "/trajectories", "/tasks", "/behaviour", "/blame"],
)
def test_a_run_without_trajectories_says_so(
    page_name: str, viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('empty')}{page_name}")

    said = re.compile(
        "No step has ended yet|No step from 0 to 0 has times|No trajectory has ended yet|"
        "this run has made 0"
    )
    expect(page.locator("main")).to_contain_text(said)


@pytest.mark.parametrize(
    "hash_",
    [
        f"#/?columns=metric%3A{quote(HOSTILE)}%0Asetting%3Arun.hostile",
        "#/run/KEY",
        "#/run/KEY/metrics",
        "#/run/KEY/settings",
        "#/compare?runs=KEY,OTHER",
        "#/run/KEY/trajectories",
        "#/run/KEY/step/1",
        "#/run/KEY/group/2",
        "#/run/KEY/behaviour?a=1..1&b=2..2",
        "#/run/KEY/blame?signal=mismatch",
    ],
)
def test_what_a_run_says_is_text(
    hash_: str, viewer: Address, open_page: Open, key_of: Keys
) -> None:
    hash_ = hash_.replace("KEY", key_of("<img")).replace("OTHER", key_of("sums"))
    page = open_page(viewer, hash_)

    expect(page.get_by_text("Loading…")).to_have_count(0)
    name = page.locator("bdi", has_text="<img src=x onerror=hacked()> ⟨U+202E⟩eman").first
    expect(name).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    hrefs = page.eval_on_selector_all(
        "a[href]", "all => all.map((one) => one.getAttribute('href'))"
    )
    assert all(href.startswith("#/") for href in hrefs if href != "#main"), hrefs


def test_what_a_task_is_called_is_text(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('<img')}/trajectories")
    row = page.locator(".grid-body [role=row]").first
    expect(row).to_contain_text("<script>window.hacked=1")

    row.locator("a").nth(1).click()

    expect(page.locator("h1")).to_contain_text("<script>window.hacked=1")
    page.get_by_text("435 equal tokens").click()  # both episodes say the same
    expect(page.locator(".alignment .look").first).to_contain_text(
        "<script>window.hacked=1"
    )
    # an escape and a mark of direction are shown by their codes
    expect(page.locator("h1")).to_contain_text("⟨U+202E⟩esrever⟨U+202C⟩ ⟨U+001B⟩[31mred")


def test_a_run_that_is_gone_is_said(
    viewer: Address, open_page: Open, complaints: Complaints
) -> None:
    complaints.expect("status of 404")
    page = open_page(viewer, "#/run/000000000000/trajectories")

    expect(page.locator(".banner.bad")).to_contain_text("000000000000")
    assert complaints.met


def keys_of(address: Address) -> dict[str, str]:
    with Client(address) as client:
        return {run["name"]: run["key"] for run in client.get("/api/runs").json()["runs"]}


def test_compare_draws_one_stage_and_names_the_settings_that_differ(
    tmp_path: Path, open_page: Open
) -> None:
    for name, lr, seed in (("low", 0.001, 1), ("low2", 0.001, 2), ("high", 0.01, 1)):
        record_two_stages(tmp_path / name, lr, seed)
    with viewing(tmp_path) as address:
        keys = keys_of(address)
        runs = ",".join(keys[name] for name in ("low", "low2", "high"))
        page = open_page(address, f"#/compare?runs={runs}&filter=mean")
        plot = page.get_by_role("application", name=re.compile("^reward.mean:"))

        # 50 steps of rl, none of the 60 of the warm-up; the last ones are 50 times the rate
        expect(plot).to_have_attribute(
            "aria-label", re.compile("50 points by step; low, low2 0.05 now, high 0.5 now")
        )
        expect(page.locator(".run-legend")).to_contain_text(
            "low, low2 differ by their seed alone"
        )
        expect(page.locator("[data-metric='reward/mean']")).to_contain_text(
            "high − low, low2: +0.432, paired by seed, n = 1, steps 46 to 50"
        )
        expect(page.locator("tr", has_text="stages.rl.optim.lr")).to_contain_text(
            "0.0010.0010.01"
        )
        # of one evaluation alone there is no line, but a point
        page.get_by_label("Filter metrics by name").fill("search")
        expect(page.locator("main figure")).to_have_count(1)
        assert page.evaluate(COLOURED)["eval/search/greedy"] > 0
        page.get_by_label("Filter metrics by name").fill("")
        page.get_by_label("Stage").select_option("warmup")
        expect(page.locator("[data-metric]")).to_have_count(1)
        expect(plot).to_have_attribute(
            "aria-label", re.compile("60 points by step; .*0.9 now")
        )
