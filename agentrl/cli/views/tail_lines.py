"""Tail lines: what happens in a run, as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agentrl.cli.terminal import counted, print_json_line, say
from agentrl.errors import Closing
from agentrl.store import RunDirectory, RunWatch
from agentrl.store.json_text import to_json
from agentrl.store.logs import event_fault
from agentrl.viewer.index import RunIndex
from agentrl.viewer.index.query import parse_query
from agentrl.viewer.runs.metrics_table import AppendedLines

_MOST_AT_ONCE = 20
_NUMBERS = {
    "reward/mean": "reward",
    "length/response/mean": "tokens",
    "turns/mean": "turns",
    "policy/entropy": "entropy",
    "mismatch/logp_abs/mean": "mismatch",
    "optim/grad_norm": "grad norm",
    "time/step_s": "seconds",
    "gpu/peak_gib/max": "GPU GiB",
}
"""Metrics of a step's line, with their short names."""


class TailEntry(NamedTuple):
    """Something that happened; ``left_out`` counts those of a kind that one look had besides."""

    kind: Literal["step", "trajectory", "alert", "left_out", "state"]
    values: Mapping[str, Any]


class _NewLines:
    """Lines of a file, each once; what is the same after a resume took later ones out is not new.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._lines = AppendedLines(path)
        self.damage = self._lines.damage
        self._known: list[int] = []
        """Hashes of those that were taken."""

    def take(self) -> list[dict[str, Any]]:
        restarted, records = self._lines.take()
        found = list(records)
        hashes = [hash(to_json(record)) for record in found]
        if not restarted:
            self._known += hashes
            return found
        pairs = zip(self._known, hashes, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._known = hashes
        return found[same:]


class RunTail(Closing):
    """Follows a run.

    Args:
        run: the run.
        query: which trajectories.
        latest: so many of each kind come first.

    Raises:
        QueryError: ``query`` is no query.
    """

    closing = "closing the index"

    def __init__(self, run: RunDirectory, query: str, latest: int) -> None:
        parse_query(query)
        self._run = run
        self._query = query
        self._latest = latest
        self._watch = RunWatch(run)
        self._index = RunIndex(run)
        self._events = _NewLines(run.events_path)
        self._metrics = _NewLines(run.metrics_path)
        self._newest: float | None = None
        self._told: set[str] = set()

    def follow(self, interval_s: float) -> Iterator[TailEntry]:
        """What happens, until the run ends; at last its state.

        Args:
            interval_s: between two looks.
        """
        while True:
            # The state comes first: what happened before the run's end is then in the last look.
            state = self._watch.look()
            yield from self._look()
            if state.kind != "alive":
                yield TailEntry("state", {"state": state.kind, "run": str(self._run.root)})
                return
            time.sleep(interval_s)

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def _look(self) -> Iterator[TailEntry]:
        """What is new since the last look, or the latest at the first."""
        first = self._newest is None
        yield from self._few("trajectory", self._trajectories(), first)
        # What both files hold is taken at one time, so that a step and its alerts come together.
        events = self._events.take()
        steps = self._metrics.take()
        faults = list(map(event_fault, events))
        alerts = [
            record
            for record, fault in zip(events, faults, strict=True)
            if record.get("level") in ("warning", "error") and not fault
        ]
        yield from self._few("alert", alerts, first)
        yield from self._few("step", steps, first)
        for text in filter(None, (*self._events.damage, *self._metrics.damage, *faults)):
            if text not in self._told:
                self._told.add(text)
                yield TailEntry(
                    "alert", {"level": "warning", "message": f"passed over: {text}"}
                )

    def _few(
        self,
        kind: Literal["step", "trajectory", "alert"],
        found: list[dict[str, Any]],
        first: bool,
    ) -> Iterator[TailEntry]:
        most = self._latest if first else _MOST_AT_ONCE
        left_out = max(0, len(found) - most)
        if left_out and not first:
            yield TailEntry("left_out", {"kind": kind, "count": left_out})
        yield from (TailEntry(kind, values) for values in found[left_out:])

    def _trajectories(self) -> list[dict[str, Any]]:
        self._index.refresh()
        limit = max(self._latest, 10 * _MOST_AT_ONCE)
        rows = self._index.page(self._query, "-recorded_at", 0, limit).rows
        since = self._newest
        self._newest = max((row["recorded_at"] for row in rows), default=since or 0.0)
        return [
            row for row in reversed(rows) if since is None or row["recorded_at"] > since
        ]


def print_entry(entry: TailEntry, *, as_json: bool) -> None:
    """Prints what happened, on a line of its own."""
    if as_json:
        print_json_line({"kind": entry.kind, **entry.values})
        return
    say(_TEXTS[entry.kind](entry.values), hang=11)


def _step(values: Mapping[str, Any]) -> str:
    numbers = [
        f"{short} {_figure(values[name])}"
        for name, short in _NUMBERS.items()
        if isinstance(values.get(name), int | float)
    ]
    evaluated = [
        f"{name.removeprefix('eval/')} {_figure(value)}"
        for name, value in values.items()
        if name.startswith("eval/") and isinstance(value, int | float)
    ]
    stage = f" {values['stage']}" if values.get("stage") else ""
    return f"{'step':>10} {values.get('step')}{stage}: {', '.join([*numbers, *evaluated])}"


def _figure(value: float) -> str:
    try:
        return f"{value:.4g}"
    except OverflowError:
        # a whole number beyond any float
        return f"{str(value)[:8]}…"


def _trajectory(row: Mapping[str, Any]) -> str:
    reward = "-" if row["reward"] is None else f"{row['reward']:.3g}"
    reason = f"({row['reason']})" if row["reason"] else ""
    facts = f"{counted(row['turns'], 'turn')}, {counted(row['tokens'], 'token')}"
    return (
        f"{'trajectory':>10} {row['id']}: {row['status']}{reason}, reward {reward}, {facts}, "
        f"task {row['task']}"
    )


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "step": _step,
    "trajectory": _trajectory,
    "alert": lambda it: (
        f"{it.get('level', 'warning'):>10} {it.get('message') or it.get('event')}"
    ),
    "left_out": lambda it: f"{'…':>10} {it['count']} more of kind {it['kind']}",
    "state": lambda it: f"{'run':>10} {it['run']} has {it['state']}",
}
