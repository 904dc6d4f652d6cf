"""Index: cold and warm start, pages, filters, counts and text search over a large run."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.store import RunDirectory
from agentrl.viewer.index import RunIndex
from benchmarks.figures import Figures
from benchmarks.viewers.synthetic_run import RARE, RARE_EVERY, make_run

__all__ = ["measure"]

TOKENS = 2_000
A_SHARD = 125
REPEATS = 5
LOOKS = 100
FIRST_PAGE = """
import sys
from pathlib import Path
from agentrl.store import RunDirectory
from agentrl.viewer.index import RunIndex
index = RunIndex(RunDirectory.open(sys.argv[1]), Path(sys.argv[2]))
index.refresh()
assert index.page(limit=200).total == int(sys.argv[3])
"""
LISTS: dict[str, tuple[str, str, int]] = {
    "sort by a column with an index": ("", "-reward", 0),
    "sort by a column without one": ("", "num_calls", 0),
    "a page from the middle": ("", "task_id", 50_000),
    "filter that half fit": ("reward<0.5", "-step", 0),
    "filter of three terms": ("env:code reward<0.5 tool_errors>=2", "-step", 0),
    "filter that few fit": ("reward<0.001 tool:search", "-step", 0),
}
NOTE = (
    f"Index: trajectories of {TOKENS:,} tokens with about 8 kB of text each, {A_SHARD} a sealed "
    f"shard, with a ledger. Cold: from nothing to all in the index. Warm: a new process, from its "
    f"start to the first page. Lists, facets: the best of {REPEATS}. A rare text is in one "
    f"trajectory of {RARE_EVERY:,}; `content` is a key of each turn's JSON and in no text, so "
    "that all turns are parsed. A text search is the first of its text; what it found in sealed "
    "shards is kept, so that the next one is immediate."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of the index."""
    number = arguments.trajectories
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shards = max(1, number // A_SHARD)
        size = make_run(
            root, trajectories=number, tokens=TOKENS, shards=shards, seed=arguments.seed
        )
        figures.report("size of the run", size / 1e6, "MB")
        run = RunDirectory.open(root)
        cache = Path(folder) / "cache"
        with RunIndex(run, cache) as index:
            figures.at_most("cold index", _seconds(index.refresh), "s", 8.0)
            _lists(figures, index)
            _texts(figures, index, number)
            started = time.thread_time()
            for _ in range(LOOKS):
                index.refresh()
            cpu_ms = (time.thread_time() - started) / LOOKS * 1e3
            figures.at_most("CPU of a look at an unchanged run", cpu_ms, "ms", 5.0)
        size = sum(path.stat().st_size for path in cache.iterdir())
        figures.report("size of the index", size / 1e6, "MB")
        command = [sys.executable, "-c", FIRST_PAGE, str(root), str(cache), str(number)]
        warm = min(_seconds(lambda: subprocess.run(command, check=True)) for _ in range(REPEATS))
        figures.at_most("warm start of a process to its first page", warm, "s", 1.5)
    figures.note(f"{number:,} trajectories in {shards} shards. {NOTE}")


def _lists(figures: Figures, index: RunIndex) -> None:
    for name, (query, sort, offset) in LISTS.items():
        figures.at_most(name, _best_ms(lambda: index.page(query, sort, offset)), "ms", 50.0)  # noqa: B023
    figures.report("facets for the first time", _seconds(index.facets) * 1e3, "ms")
    figures.at_most("facets of all", _best_ms(index.facets), "ms", 50.0)
    query = "reward<0.5 tool:python"
    figures.at_most("facets of a filter", _best_ms(lambda: index.facets(query)), "ms", 50.0)


def _texts(figures: Figures, index: RunIndex, number: int) -> None:
    rare = -(-number // RARE_EVERY)
    found: list[int] = []
    searches = {
        "rare text": (f'"{RARE}"', rare),
        "rare text in any case": (f'"{RARE.lower()}"', rare),
        "text that the JSON has": ("content", 0),
    }
    for name, (query, expected) in searches.items():
        seconds = _seconds(lambda: found.append(index.page(query).total))  # noqa: B023
        if found[-1] != expected:
            raise RuntimeError(f"{query} must be in {expected} trajectories, got {found[-1]}")
        figures.at_most(f"search for {name}", seconds, "s", 2.5)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _best_ms(work: Callable[[], object]) -> float:
    return min(_seconds(work) for _ in range(REPEATS)) * 1e3
