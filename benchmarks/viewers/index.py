"""Index: cold and warm start, pages, filters, counts and text search over a large run."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from agentrl.store import RunDirectory
from agentrl.viewer.index import RunIndex
from benchmarks.figures import Figures
from benchmarks.viewers.synthetic_run import A_SHARD, RARE, RARE_EVERY, TOKENS, large_run

__all__ = ["measure"]

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
    "sort by reward": ("", "-reward", 0),
    "sort by the time of the end": ("", "-ended_at", 0),
    "a page from the middle": ("", "task", 50_000),
    "a page near the end": ("", "-status", 90_000),
    "filter that half fit": ("reward<0.5", "-step", 0),
    "filter that half fit, sorted by another column": ("reward<0.5", "-tool_errors", 0),
    "filter of three terms": ("env:code reward<0.5 tool_errors>=2", "-step", 0),
    "filter by a reward part": ("reward.correct>=1", "-step", 0),
    "filter that few fit": ("reward<0.001 tool:search", "-step", 0),
}
"""Query, order and offset by name."""


class Text(NamedTuple):
    """A text to search for.

    Args:
        query: that searches.
        every: one trajectory of so many has it; 0 for none.
    """

    query: str
    every: int

    def found(self, trajectories: int) -> int:
        """How many of the synthetic run's trajectories have it."""
        return -(-trajectories // self.every) if self.every else 0


TEXTS = {
    "a rare text": Text(f'"{RARE}"', RARE_EVERY),
    "a rare text in any case": Text(f'"{RARE.lower()}"', RARE_EVERY),
    "a text that all have": Text("a", 1),
    "a word that is a key of the JSON": Text("content", 0),
    "a word that is a value of the JSON": Text("assistant", 0),
}
NOTE = (
    f"Index: trajectories of {TOKENS:,} tokens with about 8 kB of text each, {A_SHARD} a sealed "
    f"shard, with a ledger. Cold: from nothing to all in the index. Warm: a new process, from its "
    f"start to the first page. Lists, facets: the best of {REPEATS}. A rare text is in one "
    f"trajectory of {RARE_EVERY:,}. The words of the JSON stand in each turn as it is stored, and "
    "in no text. A text search is the first of its text; what it found in sealed "
    "shards is kept, so that the next one is immediate."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of the index."""
    number = arguments.trajectories
    with large_run(arguments) as root:
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        figures.report("size of the run", size / 1e6, "MB")
        run = RunDirectory.open(root)
        cache = root.parent / "cache"
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
        warm = min(
            _seconds(lambda: subprocess.run(command, check=True)) for _ in range(REPEATS)
        )
        figures.at_most("warm start of a process to its first page", warm, "s", 1.5)
    figures.note(f"{number:,} trajectories. {NOTE}")


def _lists(figures: Figures, index: RunIndex) -> None:
    for name, (query, sort, offset) in LISTS.items():
        figures.at_most(name, _best_ms(lambda: index.page(query, sort, offset)), "ms", 50.0)  # noqa: B023
    figures.report("facets for the first time", _seconds(index.facets) * 1e3, "ms")
    figures.at_most("facets of all", _best_ms(index.facets), "ms", 50.0)
    query = "reward<0.5 tool:python"
    figures.at_most("facets of a filter", _best_ms(lambda: index.facets(query)), "ms", 50.0)


def _texts(figures: Figures, index: RunIndex, number: int) -> None:
    for name, text in TEXTS.items():
        found: list[int] = []
        seconds = _seconds(lambda: found.append(index.page(text.query).total))  # noqa: B023
        if found[-1] != text.found(number):
            raise RuntimeError(
                f"{text.query} must be in {text.found(number)} trajectories, got {found[-1]}"
            )
        figures.at_most(f"search for {name}", seconds, "s", 2.5)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _best_ms(work: Callable[[], object]) -> float:
    return min(_seconds(work) for _ in range(REPEATS)) * 1e3
