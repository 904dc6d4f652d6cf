"""Metrics table: ``metrics.jsonl`` by stage, in columns, grown by the lines appended to it.

Each stage counts its steps from 1, so that a step alone names no row. A step may have several
lines, one for each evaluation before the first step: they make one row.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.errors import StoreError
from agentrl.guards.regular_file import NotRegularError
from agentrl.store.jsonl import DamageList, JsonFollower
from agentrl.types.arrays import F64, I64


class AppendedLines:
    """Follows one file that a run appends to, replaces or cuts. Used under its owner's lock.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._follower = JsonFollower(path)
        self.damage = DamageList()
        """Lines that are no JSON object, which are passed over; or why the file is."""

    def take(self) -> tuple[bool, Iterator[dict[str, Any]]]:
        """What came since the last call.

        Returns:
            Whether the file started over, as when a run goes back to a checkpoint, so that all that
            was taken before is void; and the new objects.

        Raises:
            StoreError: the file is there and cannot be read.
        """
        same, records = self._follower.look(self._pass_over)
        if not same:
            self.damage.clear()
        return not same, (record for _, record in records)

    def _pass_over(self, error: StoreError) -> None:
        if isinstance(error.__cause__, OSError) and not isinstance(
            error.__cause__, NotRegularError
        ):
            raise error
        self.damage.add(error)


TOKENS = "count/trained_tokens"
"""The metric whose sum is the axis of tokens."""
_AXES = ("step", "time")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The values of one metric in one stage, by step.

    Args:
        step, time, tokens, value: ``[n]``; epoch seconds and the tokens that were trained until the
            step's end, each NaN where the run does not say.
        num_known: how many values there are, of which ``n`` may be a part.
    """

    step: F64
    time: F64
    tokens: F64
    value: F64
    num_known: int

    def thinned(self, most: int) -> Series:
        """At most about ``most`` of the values, the extremes among them."""
        kept = extremes(self.value, most)
        at = (self.step[kept], self.time[kept], self.tokens[kept], self.value[kept])
        return Series(*at, num_known=self.num_known)

    def points(self) -> list[tuple[float, float]]:
        """Steps with values."""
        return list(zip(self.step.tolist(), self.value.tolist(), strict=True))

    def as_json(self) -> dict[str, Any]:
        """As the viewer's API sends it."""
        columns = {name: finite_list(getattr(self, name)) for name in _SENT}
        return {**columns, "of": self.num_known}


_SENT = ("step", "time", "tokens", "value")


def finite_list(values: F64) -> list[float | None]:
    """The numbers as JSON has them, None for those that are none."""
    return [whole(value) if math.isfinite(value) else None for value in values.tolist()]


def whole(value: float) -> float:
    """An integer where the number is one: what JSON and CSV show without a point."""
    return int(value) if float(value).is_integer() else value


def extremes(values: F64, most: int) -> I64:
    """Places of at most ``most`` values, or of 4: the first, the last, and between them of each of
    equal stretches the least and the greatest.
    """
    if values.size <= max(most, 4):
        return np.arange(values.size)
    stretches = np.array_split(np.arange(1, values.size - 1), max(1, most // 2 - 1))
    kept = {0, values.size - 1}
    for own in stretches:
        kept |= {int(own[values[own].argmin()]), int(own[values[own].argmax()])}
    return np.array(sorted(kept))


class StageMetrics:
    """The steps of one stage; of two values of one metric and step the later counts."""

    def __init__(self) -> None:
        # The room is that of the values: a metric that few steps log has few.
        self._rows: dict[float, int] = {}
        self._columns: dict[str, tuple[array[int], array[float]]] = {}
        self.unreadable: Counter[str] = Counter()
        """How many values of a metric are no finite numbers, such as NaN."""

    def names(self) -> set[str]:
        """All metrics."""
        return (self._columns.keys() | self.unreadable.keys()) - {*_AXES}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, record: Mapping[str, Any]) -> float:
        """Takes a line of the file; its step, which is the next one where the line has none."""
        step = _number(record.get("step"))
        step = len(self._rows) if step is None else step
        row = self._rows.setdefault(step, len(self._rows))
        for name, value in record.items():
            number = _number(value)
            if number is not None:
                rows, values = self._columns.setdefault(name, (array("q"), array("d")))
                rows.append(row)
                values.append(number)
            elif not isinstance(value, bool | str):
                self.unreadable[name] += 1
        return step

    def rows(self, names: Collection[str] | None = None) -> list[dict[str, float]]:
        """What each step logged, by step: step, time and the named metrics; all where None."""
        found: dict[float, dict[str, float]] = {
            step: {"step": step} for step in sorted(self._rows)
        }
        wanted = self._columns.keys() if names is None else {"time", *names}
        for name in wanted - {"step"}:
            steps, values = self._known(name)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                found[step][name] = value
        return list(found.values())

    def row(self, step: float) -> dict[str, float]:
        """What a step logged; empty where it logged nothing."""
        found: dict[str, float] = {}
        row = self._rows.get(step, -1)
        for name, (rows, values) in self._columns.items():
            places = np.flatnonzero(np.frombuffer(rows, np.int64) == row)
            if places.size:
                found[name] = values[int(places[-1])]
        return found

    def around(self, step: float) -> tuple[float | None, float | None]:
        """The nearest steps before and after one; None where there is none."""
        before = max((own for own in self._rows if own < step), default=None)
        return before, min((own for own in self._rows if own > step), default=None)

    def series(self, name: str) -> Series:
        """The values of a metric."""
        steps, values = self._known(name)
        counted, counts = self._known(TOKENS)
        place = np.searchsorted(counted, steps, "right")
        tokens = np.concatenate([[0.0], np.cumsum(counts)])[place]
        timed, times = self._known("time")
        place = np.searchsorted(timed, steps)
        has_time = np.isin(steps, timed)
        time = np.full(steps.size, np.nan)
        time[has_time] = times[place[has_time]]
        return Series(
            steps, time, tokens if counted.size else time * np.nan, values, steps.size
        )

    def _known(self, name: str) -> tuple[F64, F64]:
        """The steps that logged a metric, ascending, and its values."""
        rows, values = self._columns.get(name, (array("q"), array("d")))
        all_steps = np.fromiter(self._rows, np.float64, len(self._rows))
        steps = all_steps[np.frombuffer(rows, np.int64)] if rows else np.empty(0)
        # Behind its step, the order in which they came: the last one counts.
        order = np.argsort(steps, kind="stable")
        steps, found = steps[order], np.array(values)[order]
        last = np.append(steps[1:] != steps[:-1], True)[: steps.size]
        return steps[last], found[last]


class MetricsTable:
    """The metrics of a run. Used under its run's lock.

    Args:
        path: ``RunDirectory.metrics_path``.
    """

    def __init__(self, path: Path) -> None:
        self._lines = AppendedLines(path)
        self._clear()

    def _clear(self) -> None:
        self.stages: dict[str | None, StageMetrics] = {}
        """By name, as they began; None has the lines that name no stage."""
        self.newest_stage: str | None = None
        """Of the last line."""
        self.newest_step: float | None = None
        """Of the last line; None without any."""

    @property
    def damage(self) -> list[str]:
        """Lines that were passed over."""
        return self._lines.damage

    def refresh(self) -> bool:
        """Takes what was appended; whether there was anything.

        Raises:
            StoreError: the file cannot be read.
        """
        restarted, records = self._lines.take()
        if restarted:
            self._clear()
        changed = restarted
        for record in records:
            changed = True
            stage = record.get("stage")
            self.newest_stage = stage if isinstance(stage, str) else None
            own = self.stages.setdefault(self.newest_stage, StageMetrics())
            self.newest_step = own.add(record)
        return changed

    def stage(self, name: str | None) -> StageMetrics:
        """A stage's; an empty one where it logged nothing."""
        return self.stages.get(name) or StageMetrics()

    def names(self) -> list[str]:
        """All metrics, sorted."""
        return sorted({name for own in self.stages.values() for name in own.names()})

    def as_json(
        self,
        names: Collection[str] | None = None,
        *,
        stage: str | None = None,
        most: int = 1000,
    ) -> dict[str, Any]:
        """As the viewer's API sends it.

        Args:
            names: of the metrics whose values are wanted; all where None.
            stage: whose values are wanted; of every one where None.
            most: values of a metric and stage; of more the extremes are sent.
        """
        stages = []
        for name, own in self.stages.items():
            told = {"names": sorted(own.names()), "unreadable": dict(own.unreadable)}
            wanted = own.names().intersection(told["names"] if names is None else names)
            shown = wanted if stage in (None, name) else ()
            series = {one: own.series(one).thinned(most).as_json() for one in sorted(shown)}
            stages.append({"stage": name, "steps": len(own), **told, "series": series})
        return {"names": self.names(), "stages": stages}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        # a whole number beyond any float
        return None
