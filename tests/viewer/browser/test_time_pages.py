"""Pages of time: a step's lanes, by a click and by keys; thousands of episodes fill no document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from agentrl.store import JsonlWriter
from agentrl.store.heartbeat import Heartbeat
from tests.viewer.browser.conftest import Open
from tests.viewer.browser.runs import HOSTILE, byte_tokenizer
from tests.viewer.server.viewers import Client, viewing
from tests.viewer.timed_run import T, TimedRun

MOST_NODES = 2000
EPISODES = 2000


@pytest.mark.slow
def test_a_step_of_thousands_of_episodes(tmp_path: Path, open_page: Open) -> None:
    made = TimedRun(tmp_path / "run", byte_tokenizer())
    made.play(1, *([0.0] * EPISODES))
    made.step(1)
    made.step(2)
    with viewing(made.directory.root) as address:
        with Client(address) as client:
            [run] = client.get("/api/runs").json()["runs"]
        page = open_page(address, f"#/run/{run['key']}/metrics")
        plot = page.get_by_role("application").first
        plot.focus()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Step 1")
        expect(page.locator("#episodes")).to_contain_text("2,000 in 1 group")
        expect(page.locator(".waits")).to_contain_text("rollouts: generating")
        expect(
            page.get_by_role("status").filter(has_text="The parts come to")
        ).to_contain_text("equal")
        expect(page.get_by_text("no spread: no gradient")).to_be_visible()
        assert page.evaluate("document.querySelectorAll('*').length") < MOST_NODES

        # the loop, the group, then the episode that lasted longest
        for _ in range(3):
            page.keyboard.press("j")
        expect(page.locator("[data-active=true]")).to_contain_text("0-1999-0")
        drawn = page.locator("[data-active=true] canvas")
        expect(drawn).to_have_attribute("aria-label", re.compile("generating 3 s"))
        assert (
            drawn.evaluate("(c) => c.getContext('2d').getImageData(2, 9, 1, 1).data[3]")
            > 250
        )
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("0-1999-0")
        page.get_by_role("link", name="step", exact=True).click()
        expect(page.locator("h1")).to_have_text("Step 1")
        page.keyboard.press("]")
        expect(page.locator("h1")).to_have_text("Step 2")
        expect(page.locator("main")).to_contain_text("No episode ended in this step")
        page.context.close()


@pytest.mark.slow
def test_a_timeline_is_zoomed_and_opens_a_step(tmp_path: Path, open_page: Open) -> None:
    made = TimedRun(tmp_path / "run", byte_tokenizer())
    for step in range(1, 9):
        made.play(step, 1.0, group=step)
        made.step(step)
        made.log(step, **{"time/step_s": 20.0, "gpu/peak_gib/max": 9.0})
    made.directory.log_folder.mkdir()
    log = JsonlWriter(made.directory.log_folder / "rank-0.jsonl")
    log.append({"event": HOSTILE, "time": T + 50.0, "seconds": 9})
    log.close()
    with viewing(made.directory.root) as address:
        page = open_page(address)
        expect(page.locator("#look-here")).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("i")
        lanes = page.locator(".time-lane canvas")
        expect(lanes).to_have_count(4)
        expect(
            page.get_by_role("application", name=re.compile("^gpu.peak_gib"))
        ).to_be_visible()
        page.keyboard.press("+")
        expect(page.get_by_label("First step")).to_have_value("3")
        expect(page.get_by_label("Last step")).to_have_value("6")
        page.keyboard.press("]")
        page.reload()
        expect(page.get_by_label("First step")).to_have_value("7")
        page.get_by_label("Last step").fill("8")
        page.get_by_label("Last step").press("Enter")
        page.get_by_label("First step").fill("3")
        page.get_by_label("First step").press("Enter")
        expect(page).to_have_url(re.compile("first=3&last=8"))
        expect(lanes).to_have_count(4)
        box = lanes.last.bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] * 0.08, box["y"] + 9)
        expect(page.locator(".time-head[role=status]")).to_contain_text("<script>")
        lanes.first.click(position={"x": 5, "y": 9})
        expect(page.locator("h1")).to_have_text("Step 3")
        page.context.close()


def test_a_step_under_way_is_followed(tmp_path: Path, open_page: Open) -> None:
    made = TimedRun(tmp_path / "run", byte_tokenizer())
    made.step(1)
    with Heartbeat(made.directory), viewing(made.directory.root) as address:
        with Client(address) as client:
            [run] = client.get("/api/runs").json()["runs"]
        page = open_page(address, f"#/run/{run['key']}/step/2")
        expect(page.locator("main")).to_contain_text("The step is under way")

        made.play(2, 1.0, 0.0, seal=False)
        expect(page.locator("#episodes")).to_contain_text("2 in 1 group")
        made.step(2)
        expect(page.locator(".waits")).to_contain_text("rollouts: generating")
        page.context.close()
