"""Neighbours: the trajectories beside one: in the run, in its group, and of its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.viewer.index import RunIndex
from agentrl.viewer.index.query import term

_WITHIN_STEP = "stage,label,group_index,rollout_index,attempt"
_BEFORE = "-step,-stage,-label,-group_index,-rollout_index,-attempt"
_AFTER = f"step,{_WITHIN_STEP}"


def neighbours(index: RunIndex, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The ids beside a trajectory of its stage; None where there is none.

    Args:
        index: of the run.
        columns: of the trajectory.
    """
    own = columns["id"]
    stage = term("stage", columns["stage"])
    step = f"step:{columns['step']} {stage}"
    before, after = beside(index.ids(step, _WITHIN_STEP), own)
    # At an end of the step, the nearest step of the stage that has any goes on.
    if before is None:
        before = _first(index, f"step<{columns['step']} {stage}", _BEFORE)
    if after is None:
        after = _first(index, f"step>{columns['step']} {stage}", _AFTER)
    group = f"group:{columns['group_index']} {step}"
    group += f" {term('label', columns['label'])}"
    task = term("task", columns["task_id"])
    task_before, task_after = beside(index.ids(task, _AFTER) if task else [], own)
    return {
        "previous": before,
        "next": after,
        "siblings": index.ids(group, "rollout_index,attempt"),
        "same_task_previous": task_before,
        "same_task_next": task_after,
    }


def beside(ids: Sequence[str], own: str) -> tuple[str | None, str | None]:
    """What stands before and after ``own``."""
    if own not in ids:
        return None, None
    place = ids.index(own)
    before = ids[place - 1] if place else None
    return before, ids[place + 1] if place + 1 < len(ids) else None


def _first(index: RunIndex, query: str, sort: str) -> str | None:
    rows = index.page(query, sort, limit=1).rows
    return str(rows[0]["id"]) if rows else None
