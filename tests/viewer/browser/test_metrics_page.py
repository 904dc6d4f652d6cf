"""The page of metrics: each one is drawn, found, pinned, and saved; the address has all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from agentrl.store import JsonlWriter, RunDirectory
from agentrl.viewer.launch import Address
from tests.viewer.browser.conftest import Open
from tests.viewer.server.viewers import Client, viewing

Keys = Callable[[str], str]
LOGGED = [
    "accuracy/mean",
    "mismatch/logp_abs/max",
    "mismatch/logp_abs/mean",
    "policy/entropy",
    "policy/loss",
    "reward/mean",
    "turns/mean",
]


def test_every_metric_is_drawn_found_pinned_and_saved(
    viewer: Address, open_page: Open, key_of: Keys
) -> None:
    page = open_page(viewer, f"#/run/{key_of('sums')}/metrics")
    panels = page.locator("[data-metric]")
    expect(page.locator("main figure")).to_have_count(len(LOGGED))
    assert panels.evaluate_all("all => all.map((one) => one.dataset.metric)") == LOGGED
    expect(page.locator("details h2")).to_have_text(
        ["accuracy 1", "mismatch 2", "policy 2", "reward 1", "turns 1"]
    )

    page.keyboard.press("/")
    page.keyboard.type("mean LOGP")
    expect(panels).to_have_count(1)
    page.get_by_role("button", name="Pin mismatch/logp_abs/mean").click()
    page.get_by_label("Filter metrics by name").fill("loss")
    expect(panels).to_have_count(2)
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    page.keyboard.press("s")
    page.keyboard.press("l")
    page.get_by_label("Smoothing").fill("0.5")
    page.locator("details summary").click()
    expect(panels).to_have_count(1)
    page.reload()

    expect(panels).to_have_count(1)
    plot = panels.first.get_by_role("application")
    expect(plot).to_have_attribute("aria-label", re.compile("6 points by time; .*0.05 now"))
    expect(page.get_by_label("Filter metrics by name")).to_have_value("loss")
    expect(page.get_by_role("button", name="log axis")).to_have_attribute(
        "aria-pressed", "true"
    )
    with page.expect_download() as picture:
        page.get_by_role("button", name="PNG of mismatch/logp_abs/mean").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as table:
        page.get_by_role("link", name="CSV of mismatch/logp_abs/mean").click()
    lines = Path(table.value.path()).read_text().splitlines()
    assert lines[:2] == ["stage,step,time,mismatch/logp_abs/mean", "rl,1,1795000060,0.05"]


def test_what_has_no_place_in_a_chart_is_told(tmp_path: Path, open_page: Open) -> None:
    run = RunDirectory.create(tmp_path / "odd", {"seed": 0})
    lines = JsonlWriter(run.metrics_path)
    for step in range(3000):
        row = {"step": step, "stage": "rl", "a/many": step % 7, "a/never": float("nan")}
        lines.append(row | ({"b/one": -3.0} if step == 5 else {}))
    lines.append({"step": 1, "stage": "other", "b/one": 4.0})
    lines.close()
    with viewing(tmp_path) as address:
        with Client(address) as client:
            [run_row] = client.get("/api/runs").json()["runs"]
        page = open_page(address, f"#/run/{run_row['key']}/metrics?stage=rl")
        many, never, one = (
            page.locator(f"[data-metric='{name}']")
            for name in ("a/many", "a/never", "b/one")
        )
        expect(many).to_contain_text("1,000 of 3,000 values are drawn")
        expect(never).to_contain_text("3,000 values are no finite number")
        expect(one.get_by_role("application")).to_have_attribute(
            "aria-label", re.compile("1 points by step; b/one −3 now")
        )

        page.keyboard.press("l")

        expect(one).to_contain_text("1 values of 0 or less have no place on this axis")
        # a stage is never joined with another
        page.get_by_label("Stage").select_option("other")
        expect(page.locator("[data-metric]")).to_have_count(1)
        expect(one).to_contain_text("4")
        page.context.close()
