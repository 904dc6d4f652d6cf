"""Metrics table: ``metrics.jsonl`` by stage, in columns, grown by the lines appended to it.

Each stage counts its steps from 1, so that a step alone names no row. A step may have several
lines, one for each evaluation before the first step: they make one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.regular_file import NotRegularError
from agentrl.store.jsonl import DamageList, JsonFollower


class AppendedLines:
    """Follows one file that a run appends to, replaces or cuts. Used under its owner's lock.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._follower = JsonFollower(path)
        self.damage = DamageList()
        """Lines that are no JSON object, which are passed over; or why the file is."""

    def take(self) -> tuple[bool, list[dict[str, Any]]]:
        """What came since the last call.

        Returns:
            Whether the file started over, as when a run goes back to a checkpoint, so that all that
            was taken before is void; and the new objects.

        Raises:
            StoreError: the file is there and cannot be read.
        """
        same, records = self._follower.look(self._pass_over)
        return not same, [record for _, record in records]

    def _pass_over(self, error: StoreError) -> None:
        if isinstance(error.__cause__, OSError) and not isinstance(
            error.__cause__, NotRegularError
        ):
            raise error
        self.damage.add(error)


_AXES = ("step", "time")


class StageMetrics:
    """The steps of one stage, a row each; of two values of one metric and step the later counts."""

    def __init__(self) -> None:
        self._steps: dict[float, dict[str, float]] = {}
        self._names: set[str] = set()

    def names(self) -> set[str]:
        """All metrics."""
        return self._names - {*_AXES}

    def add(self, record: Mapping[str, Any]) -> float:
        """Takes a line of the file; its step, which is the next one where the line has none."""
        numbers = {name: _number(value) for name, value in record.items()}
        known = {name: value for name, value in numbers.items() if value is not None}
        step = known.setdefault("step", len(self._steps))
        self._steps.setdefault(step, {}).update(known)
        self._names |= known.keys()
        return step

    def rows(self) -> list[dict[str, float]]:
        """What each step logged, by step."""
        return [self._steps[step] for step in sorted(self._steps)]

    def row(self, step: float) -> dict[str, float]:
        """What a step logged; empty where it logged nothing."""
        return self._steps.get(step, {})

    def columns(self, names: Iterable[str]) -> dict[str, list[float | None]]:
        """Step, time (epoch seconds) and the named metrics, by step; None where a row lacks it."""
        rows = self.rows()
        return {name: [row.get(name) for row in rows] for name in (*_AXES, *names)}

    def series(self, name: str) -> list[tuple[float, float]]:
        """The values of a metric with their steps."""
        return [(row["step"], row[name]) for row in self.rows() if name in row]


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
    except OverflowError:
        # a whole number beyond any float
        return None
