"""Metrics table: ``metrics.jsonl`` by stage, in columns, grown by what was appended.

Each stage counts its steps from 1, so that a step alone names no row. A step may have several
lines, one for each evaluation before the first step: they make one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.viewer.runs.appended import AppendedLines

_AXES = ("step", "time")


class StageMetrics:
    """The steps of one stage, a row each; of two values of one metric and step the later counts."""

    def __init__(self) -> None:
        self._places: dict[float, int] = {}
        self._columns: dict[str, list[Any]] = {name: [] for name in _AXES}

    def names(self) -> set[str]:
        """All metrics."""
        return set(self._columns) - set(_AXES)

    def add(self, record: dict[str, Any]) -> float:
        """Takes a line of the file; its step, which is the next one where the line has none."""
        step = _number(record.get("step"))
        step = len(self._places) if step is None else step
        place = self._places.setdefault(step, len(self._places))
        if place == len(self._columns["step"]):
            for column in self._columns.values():
                column.append(None)
        known = {name: _number(value) for name, value in record.items()}
        for name, value in {**known, "step": step}.items():
            if value is not None:
                column = self._columns.setdefault(name, [None] * len(self._places))
                column[place] = value
        return step

    def columns(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """Step, time (epoch seconds) and the named metrics, by step; None where a row lacks it."""
        order = sorted(range(len(self._places)), key=self._columns["step"].__getitem__)
        empty: list[Any] = [None] * len(order)
        chosen = {name: self._columns.get(name, empty) for name in (*_AXES, *names)}
        return {name: [column[place] for place in order] for name, column in chosen.items()}

    def rows(self) -> list[dict[str, Any]]:
        """A mapping a step of all that it logged, by step."""
        columns = self.columns(self._columns)
        cells = zip(*columns.values(), strict=True)
        return [dict(zip(columns, values, strict=True)) for values in cells]

    def row(self, step: int) -> dict[str, Any]:
        """What a step logged; empty where it logged nothing."""
        if step not in self._places:
            return {}
        return {name: column[self._places[step]] for name, column in self._columns.items()}

    def series(self, name: str) -> list[tuple[int, float]]:
        """The finite values of a metric with their steps."""
        columns = self.columns([name])
        pairs = zip(columns["step"], columns[name], strict=True)
        return [(step, value) for step, value in pairs if value is not None]


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
        for record in records:
            stage = record.get("stage")
            self.newest_stage = stage if isinstance(stage, str) else None
            own = self.stages.setdefault(self.newest_stage, StageMetrics())
            self.newest_step = own.add(record)
        return restarted or bool(records)

    def stage(self, name: str | None) -> StageMetrics:
        """A stage's; an empty one where it logged nothing."""
        return self.stages.get(name) or StageMetrics()

    def names(self) -> list[str]:
        """All metrics, sorted."""
        return sorted({name for own in self.stages.values() for name in own.names()})

    def as_json(self, names: Iterable[str]) -> dict[str, Any]:
        """As the viewer's API sends it: of each stage the axes, and those of the named metrics that
        it has.
        """
        wanted = list(names)
        stages = [
            {"stage": name, "columns": own.columns([one for one in wanted if one in own.names()])}
            for name, own in self.stages.items()
        ]
        return {"names": self.names(), "stages": stages}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond any float
        return None
