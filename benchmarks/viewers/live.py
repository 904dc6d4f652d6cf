"""Live: a viewer of a large run into which trajectories arrive: answers, CPU, memory and tabs."""

from __future__ import annotations

import argparse
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path

import httpx
import numpy as np
from playwright.sync_api import BrowserContext, Page

from agentrl.store import RunDirectory, TrajectoryWriter
from benchmarks.figures import Figures
from benchmarks.viewers.arrivals import A_STEP, TOKENS, arrive
from benchmarks.viewers.browser import FRAME, chromium
from benchmarks.viewers.index import LISTS, TEXTS, Text
from benchmarks.viewers.server import Viewer, viewing
from benchmarks.viewers.synthetic_run import GROUP_SIZE, large_run
from benchmarks.viewers.trajectories import Episodes
from benchmarks.viewers.vocabulary import keep_tokenizer

__all__ = ["measure"]

A_RUN = 100
"""One trajectory arrives for so many that the run has."""
LONG = 32_000
NUM_LONG = 32
LEAST = 100
"""Answers of each kind that are timed at least."""
TABS = 8
EPISODES = 5
CLICKS = 7
VOCABULARY = 50_000
ROW = ".grid-body [role=row] a"
TARGET_MS = {TOKENS: 30.0, LONG: 60.0}
"""Of one trajectory."""

CLICK = """async (index) => {
    const row = document.querySelectorAll(".grid-body [role=row]")[index];
    const id = row.querySelector("a").textContent;
    const start = performance.now();
    row.querySelector("[role=gridcell]:nth-child(2)").click();
    const named = () => document.querySelector("h1")?.textContent === id;
    while (!named() || !document.querySelector(".chat-turn")) {
        await new Promise(requestAnimationFrame);
    }
    await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""

WATCH = """(text) => {
    window.shownAt = new Promise((done) => {
        const look = () => {
            const heads = [...document.querySelectorAll(".head [role=status]")];
            if (!heads.some((head) => head.textContent === text)) return;
            watcher.disconnect();
            requestAnimationFrame(() => setTimeout(() => done(Date.now())));
        };
        const watcher = new MutationObserver(look);
        watcher.observe(document, { subtree: true, childList: true, characterData: true });
    });
}"""


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of a live run."""
    arriving = max(2, arguments.trajectories // A_RUN)
    with large_run(arguments) as run, chromium() as browser:
        groups = count(arguments.trajectories // GROUP_SIZE)
        steps = count(len(list(RunDirectory(run).sealed_folder.iterdir())))
        long_ones = _write_long(run, arguments.seed, groups, next(steps))
        with viewing(run, run.parent / "cache") as viewer, viewer.client() as client:
            page = _list(browser, viewer)
            page.wait_for_selector(ROW)
            with _arriving(run, arriving // 2, arguments.seconds / 2, groups, steps):
                share = viewer.cpu_share(arguments.seconds / 2)
            figures.at_most("viewer's CPU while it follows, of a core", share, "%", 5.0)
            with _arriving(
                run, arriving // 2, arguments.seconds / 2, groups, steps
            ) as writer:
                _ask(figures, client, writer, arguments, long_ones)
            _click(figures, browser, viewer)
            _tabs(figures, browser, page, viewer, run, groups, next(steps))
            page.wait_for_timeout(5000)  # what was begun for the tabs ends
            share = viewer.cpu_share(arguments.seconds / 2)
            figures.at_most(
                "viewer's CPU while nothing arrives, of a core", share, "%", 0.5
            )
            figures.at_most("viewer's memory at most", viewer.peak_mb(), "MB", 400.0)
    figures.note(_note(arguments, arriving))


def _note(arguments: argparse.Namespace, arriving: int) -> str:
    return (
        f"Live: `agentrl view` of {arguments.trajectories:,} trajectories of {TOKENS:,} tokens and "
        f"{NUM_LONG} of {LONG:,}, started cold, with one page on the list in Chromium. "
        f"{arriving:,} more arrive within {arguments.seconds:g} s, each live, annotated and sealed "
        "with its step; the viewer's share of a core is that of the first half of them. During the "
        "second half a script asks for one thing after the other, over HTTP. The first search for "
        f"a text reads all shards. Tabs: {TABS} on the list; {EPISODES} times an episode ends, and "
        "the time runs from the call that stores it to the last tab's frame that counts it. "
        "Nothing arrives: one page is open. Memory is the process's resident set, the mapped pages "
        "of its index included."
    )


def _write_long(run: Path, seed: int, groups: Iterator[int], step: int) -> list[str]:
    """Long trajectories in a sealed step, and a tokenizer; their ids."""
    directory = RunDirectory.open(run)
    keep_tokenizer(directory, np.random.default_rng(seed), VOCABULARY)
    episodes = Episodes(LONG, seed, turns=16)
    ids = []
    with TrajectoryWriter(directory, "long") as writer:
        for _ in range(NUM_LONG):
            one = episodes.trajectory(next(groups), 0)
            writer.write(one, step)
            writer.annotate(episodes.annotation(one, step))
            ids.append(one.id)
        writer.seal(step)
    return ids


@contextmanager
def _arriving(
    run: Path, number: int, seconds: float, groups: Iterator[int], steps: Iterator[int]
) -> Iterator[subprocess.Popen[str]]:
    """Trajectories that arrive; at the end of the block all have."""
    group, step = _take(groups, number), _take(steps, -(-number // A_STEP))
    with arrive(run, number=number, seconds=seconds, group=group, step=step) as process:
        yield process
        process.communicate(timeout=seconds + 60)
    if process.returncode:
        raise RuntimeError(f"the process that writes ended with {process.returncode}")


def _take(numbers: Iterator[int], size: int) -> int:
    """The first of the next so many numbers."""
    return next(iter([next(numbers) for _ in range(size)]))


def _list(browser: BrowserContext, viewer: Viewer) -> Page:
    page = browser.new_page()
    page.goto(viewer.link("/trajectories"))
    return page


def _ask(
    figures: Figures,
    client: httpx.Client,
    writer: subprocess.Popen[str],
    arguments: argparse.Namespace,
    long_ones: list[str],
) -> None:
    """Asks for lists, texts and trajectories in turn while the writer lives."""
    for name, text in TEXTS.items():
        seconds = _seconds(lambda: _found(client, arguments.trajectories, text))  # noqa: B023
        figures.at_most(f"search for {name} while more arrive", seconds, "s", 2.5)
    chosen = random.Random(arguments.seed)
    lists: list[float] = []
    reads: dict[str, list[float]] = {
        f"{path} {size}": [] for path in READS for size in TARGET_MS
    }
    asked = cycle(LISTS.values())
    for times in count():
        if times >= min(LEAST, arguments.trajectories // 10) and writer.poll() is not None:
            break
        query, sort, offset = next(asked)
        params = {"query": query, "sort": sort, "offset": offset, "limit": 100}
        lists.append(1e3 * _seconds(lambda: _get(client, "/trajectories", params)))  # noqa: B023
        place = chosen.randrange(arguments.trajectories // GROUP_SIZE * GROUP_SIZE)
        usual = f"{place // GROUP_SIZE}-{place % GROUP_SIZE}-0"
        for path in READS:
            for size, one in ((TOKENS, usual), (LONG, chosen.choice(long_ones))):
                ms = 1e3 * _seconds(lambda: _get(client, path, {"id": one}))  # noqa: B023
                reads[f"{path} {size}"].append(ms)
    figures.report("sort or filter while more arrive, p50", np.percentile(lists, 50), "ms")
    figures.at_most(
        "sort or filter while more arrive, p95", np.percentile(lists, 95), "ms", 50.0
    )
    for path, what in READS.items():
        for size, target_ms in TARGET_MS.items():
            name = f"{what} of {size:,} while more arrive"
            own = reads[f"{path} {size}"]
            figures.report(f"{name}, p50", np.percentile(own, 50), "ms")
            figures.at_most(f"{name}, p95", np.percentile(own, 95), "ms", target_ms)


READS = {
    "/trajectory": "one trajectory without tokens",
    "/tokens": "the tokens of one trajectory",
}
"""What is asked of one trajectory, by its path."""


def _found(client: httpx.Client, trajectories: int, text: Text) -> None:
    total = _get(client, "/trajectories", {"query": text.query, "limit": 50}).json()[
        "total"
    ]
    if total < text.found(trajectories):
        raise RuntimeError(
            f"{text.query} must be in {text.found(trajectories)} trajectories, got {total}"
        )


def _get(client: httpx.Client, path: str, params: dict[str, object]) -> httpx.Response:
    return client.get(path, params=params).raise_for_status()  # type: ignore[arg-type]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _click(figures: Figures, browser: BrowserContext, viewer: Viewer) -> None:
    page = _list(browser, viewer)
    clicks = []
    for index in range(CLICKS):
        page.wait_for_selector(ROW)
        page.evaluate(FRAME)
        clicks.append(page.evaluate(CLICK, index))
        page.go_back()
    page.close()
    figures.at_most("a click on a row to its page painted", np.median(clicks), "ms", 500.0)


def _tabs(
    figures: Figures,
    browser: BrowserContext,
    first: Page,
    viewer: Viewer,
    run: Path,
    groups: Iterator[int],
    step: int,
) -> None:
    tabs = [first, *(_list(browser, viewer) for _ in range(TABS - 1))]
    episodes = Episodes(TOKENS, 0)
    latest = []
    with (
        viewer.client() as client,
        TrajectoryWriter(RunDirectory.open(run), "tabs") as writer,
    ):
        for tab in tabs:
            tab.wait_for_selector(ROW)
        for _ in range(EPISODES):
            total = _get(client, "/trajectories", {"limit": 1}).json()["total"]
            one = episodes.trajectory(next(groups), 0)
            for tab in tabs:
                tab.evaluate(WATCH, f"{total + 1:,} found")
            ended = time.time()
            writer.write(one, step)
            shown = [tab.evaluate("shownAt") / 1e3 for tab in tabs]
            latest.append(max(shown) - ended)
    figures.at_most(
        f"an episode's end to its row in the last of {TABS} tabs", max(latest), "s", 2.0
    )
    for tab in tabs[1:]:
        tab.close()
