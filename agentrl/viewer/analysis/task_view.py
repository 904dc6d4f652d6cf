"""Task view: one task over training, by the policy version that played it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SERIES = ("reward", "num_policy_tokens", "num_turns", "num_calls", "num_tool_errors")
"""The columns whose means are shown."""


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task's trajectories and what became of them.

    Args:
        rows: their summaries, by policy version, step and id.
        series: ``version`` and ``count`` (trajectories), and the mean of each of ``SERIES``; an
            entry for each version, None where no trajectory has a value.
        first, last: of the oldest and the newest version, the trajectory with the median reward:
            the pair that a reader compares first; None without trajectories.
    """

    rows: tuple[Mapping[str, Any], ...]
    series: Mapping[str, list[float | None]]
    first: str | None
    last: str | None

    def as_json(self) -> dict[str, Any]:
        """As the viewer's API sends it."""
        return asdict(self)


def task_view(rows: Iterable[Mapping[str, Any]]) -> TaskView:
    """The view of a task.

    Args:
        rows: its summaries (columns of docs/trajectory-format.md), in any order; one without a
            policy version counts in no series.
    """
    ordered = sorted(rows, key=lambda row: (_version(row), row["step"], row["id"]))
    by_version: dict[int, list[Mapping[str, Any]]] = {}
    for row in ordered:
        if _version(row) >= 0:
            by_version.setdefault(_version(row), []).append(row)
    series: dict[str, list[float | None]] = {
        "version": [float(version) for version in by_version],
        "count": [float(len(own)) for own in by_version.values()],
    }
    for name in SERIES:
        series[name] = [_mean(own, name) for own in by_version.values()]
    versions = list(by_version.values())
    return TaskView(
        tuple(ordered),
        series,
        _median(versions[0]) if versions else None,
        _median(versions[-1]) if versions else None,
    )


def _version(row: Mapping[str, Any]) -> int:
    version = row.get("policy_version_max")
    return -1 if version is None else int(version)


def _mean(rows: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.mean(values)) if values else None


def _median(rows: list[Mapping[str, Any]]) -> str | None:
    rewarded = sorted(
        (row for row in rows if row["reward"] is not None),
        key=lambda row: (row["reward"], row["id"]),
    )
    return str(rewarded[len(rewarded) // 2]["id"]) if rewarded else None
