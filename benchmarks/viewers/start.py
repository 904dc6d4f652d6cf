"""Start: from the start of ``agentrl view`` to the first rows in the browser, cold and warm."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import BrowserContext

from benchmarks.figures import Figures
from benchmarks.viewers.browser import FRAME, chromium
from benchmarks.viewers.server import viewing
from benchmarks.viewers.synthetic_run import large_run

__all__ = ["measure"]

REPEATS = 5
ROW = ".grid-body [role=row] a"
FACET = ".facets"
NOTE = (
    "Start: from the start of the process `agentrl view RUN` until the frame in which Chromium, "
    "which is open already, has painted the first rows of the run's list. Cold: no index yet. "
    f"Warm: the median of {REPEATS} further starts. The files are in the system's memory."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of the start."""
    with large_run(arguments) as run, chromium() as browser:
        cache = run.parent / "cache"
        cold, cold_cpu = _first_rows_s(browser, run, cache)
        figures.at_most("process start to first rows painted, cold index", cold, "s", 8.0)
        figures.report("viewer's CPU until then, cold index", cold_cpu, "s")
        rounds = [_first_rows_s(browser, run, cache) for _ in range(REPEATS)]
        warm, warm_cpu = np.median(rounds, axis=0).tolist()
        figures.at_most("process start to first rows painted, warm index", warm, "s", 1.5)
        figures.report("viewer's CPU until then, warm index", warm_cpu, "s")
    figures.note(f"{arguments.trajectories:,} trajectories. {NOTE}")


def _first_rows_s(browser: BrowserContext, run: Path, cache: Path) -> tuple[float, float]:
    """Seconds until the rows are painted, and of the viewer's processor."""
    page = browser.new_page()
    started = time.perf_counter()
    with viewing(run, cache) as viewer:
        page.goto(viewer.link("/trajectories"))
        page.wait_for_selector(ROW)
        page.evaluate(FRAME)
        seconds = time.perf_counter() - started
        cpu_s = viewer.cpu_s()
        page.wait_for_selector(FACET)  # so that no request is cut off
        page.close()
    return seconds, cpu_s
