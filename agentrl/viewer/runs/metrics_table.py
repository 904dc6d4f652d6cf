"""Metrics table: ``metrics.jsonl`` in columns, grown by what was appended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl.viewer.runs.appended import AppendedLines

_AXES = ("step", "time", "stage")


class MetricsTable:
    """One row a logged step, in the order of the file. Used under its run's lock.

    Args:
        path: ``RunDirectory.metrics_path``.
    """

    def __init__(self, path: Path) -> None:
        self._lines = AppendedLines(path)
        self.columns: dict[str, list[Any]] = {name: [] for name in _AXES}
        """Step, time (epoch seconds), stage, and every metric by name; None where a row lacks
        it.
        """

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def damage(self) -> list[str]:
        """Lines that were passed over."""
        return self._lines.damage

    def refresh(self) -> bool:
        """Takes what was appended; whether there was anything.

        Raises:
            OSError: the file cannot be read.
        """
        restarted, records = self._lines.take()
        if restarted:
            self.columns = {name: [] for name in _AXES}
        for record in records:
            self._add(record)
        return restarted or bool(records)

    def names(self) -> list[str]:
        """All metrics, sorted."""
        return sorted(name for name in self.columns if name not in _AXES)

    def rows(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """The axes and the named metrics; an unknown name gets a column of None."""
        empty: list[Any] = [None] * len(self)
        return {name: self.columns.get(name, empty) for name in (*_AXES, *names)}

    def series(self, name: str, stage: str | None = None) -> list[tuple[int, float]]:
        """The finite values of a metric with their steps, of one stage or of all."""
        rows = zip(
            self.columns["step"],
            self.columns["stage"],
            self.columns.get(name, [None] * len(self)),
            strict=True,
        )
        return [
            (step, value) for step, own, value in rows if value is not None and stage in (None, own)
        ]

    def last(self, name: str) -> Any:
        """The newest row's value of an axis or metric; None without one."""
        column: Sequence[Any] = self.columns.get(name, ())
        return column[-1] if column else None

    def _add(self, record: dict[str, Any]) -> None:
        count = len(self)
        for name in record:
            if name not in self.columns:
                self.columns[name] = [None] * count
        for name, column in self.columns.items():
            value = record.get(name)
            column.append(value if name == "stage" else _number(value))
        if self.columns["step"][-1] is None:
            self.columns["step"][-1] = count


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None
