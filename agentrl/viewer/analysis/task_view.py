"""Task view: one task over training, by the policy version that played it.

What is not comparable is no mean: each stage counts its versions from 0, and rollouts, the greedy
baseline and each evaluation sample in ways of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

SERIES = ("reward", "num_policy_tokens", "num_turns", "num_calls", "num_tool_errors")
"""The columns whose means are shown."""

Row = Mapping[str, Any]


def task_view(rows: Iterable[Row]) -> dict[str, Any]:
    """One task's trajectories and what became of them, as the viewer's API sends it.

    Args:
        rows: its summaries (columns of docs/trajectory-format.md), in any order; one without a
            policy version counts in no course.

    Returns:
        ``rows``: the summaries with ``way``, by stage as they began, policy version, step and id.
        ``courses``: how each stage played the task, as they began: ``stage``; ``version``, the
        policy versions that played it, ascending; ``ways``: by the way of playing (``way_of``),
        ``count`` (trajectories) and the mean of each of ``SERIES``, an entry for each version,
        None where no trajectory has a value; ``first`` and ``last``: of the oldest and the newest
        version, the trajectory with the median reward, of the way that has most: the pair that a
        reader compares first; None without any.
    """
    told = [{**row, "way": way_of(row)} for row in rows]
    by_stage: dict[str, list[Row]] = {}
    for row in sorted(told, key=lambda row: row.get("recorded_at") or 0.0):
        by_stage.setdefault(row.get("stage") or "", []).append(row)
    for own in by_stage.values():
        own.sort(key=lambda row: (_version(row), row["step"], row["id"]))
    return {
        "rows": [row for own in by_stage.values() for row in own],
        "courses": [_course(stage, own) for stage, own in by_stage.items()],
    }


def way_of(row: Row) -> str:
    """How a trajectory was sampled: ``train``, ``baseline``, or an evaluation's set and kind, such
    as ``code greedy`` of the label ``code/before/greedy``.
    """
    if row.get("purpose") != "eval":
        return str(row.get("purpose") or "train")
    name, *parts = str(row.get("label") or "eval").split("/")
    return " ".join([name, *parts[-1:]])


def _course(stage: str, rows: list[Row]) -> dict[str, Any]:
    known = [row for row in rows if _version(row) >= 0]
    versions = sorted({_version(row) for row in known})
    by_way: dict[str, dict[int, list[Row]]] = {}
    for row in known:
        by_way.setdefault(row["way"], {}).setdefault(_version(row), []).append(row)
    ways: dict[str, dict[str, list[float | None]]] = {}
    for way, own in by_way.items():
        played = [own.get(version, []) for version in versions]
        ways[way] = {name: [_mean(one, name) for one in played] for name in SERIES}
        ways[way]["count"] = [float(len(one)) for one in played]
    largest = max(by_way.values(), key=lambda own: sum(map(len, own.values())), default={})
    main = list(largest.values())
    first, last = (_median(main[0]), _median(main[-1])) if main else (None, None)
    return {"stage": stage, "version": versions, "ways": ways, "first": first, "last": last}


def _version(row: Row) -> int:
    version = row.get("policy_version_max")
    return -1 if version is None else int(version)


def _mean(rows: Iterable[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.mean(values)) if values else None


def _median(rows: list[Row]) -> str | None:
    rewarded = sorted(
        (row for row in rows if row["reward"] is not None),
        key=lambda row: (row["reward"], row["id"]),
    )
    return str(rewarded[len(rewarded) // 2]["id"]) if rewarded else None
