"""Tasks: which a policy unlearned, never solved, solves at last, and which teach it nothing more.

Statistics: docs/behaviour-and-blame.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.viewer.analysis.stored_rows import NO_CALL, Episode
from agentrl.viewer.index import TaskRewards

MOST_TASKS = 100
"""Of each list; its total counts all."""
_LEAST_VARIANCE = 1e-6


ByTask = Mapping[str, TaskRewards]
_NONE = TaskRewards(0, 0.0, 0.0, 0)


def task_changes(a: ByTask, b: ByTask, earlier: ByTask) -> dict[str, Any]:
    """The tasks by what became of them, as the viewer's API sends it.

    Args:
        a, b: of two ranges of steps.
        earlier: of all steps before b's first.

    Returns:
        ``tasks`` and ``episodes``: how many b has. Then lists of tasks, each as ``total``, the
        ``episodes`` of b in it, and its first ``rows``:
        ``regressions``: the mean reward fell; surest first, by ``z``.
        ``new``: solved in b and never before, though tried.
        ``never``: tried in b, and solved neither there nor before; most tried first.
        ``always``: every trajectory of a and b solved it; most tried first.
        A row has ``task``, ``count_a``, ``count_b``, ``mean_a``, ``mean_b`` (None without any),
        ``solved_a``, ``solved_b``, ``tried`` (trajectories up to b's last step) and ``z``: the
        change of the mean in standard errors, None where one range lacks the task.
    """
    usual = _usual_variance([*a.values(), *b.values()])

    def row(task: str) -> dict[str, Any]:
        one, other = a.get(task, _NONE), b.get(task, _NONE)
        return {
            "task": task,
            "count_a": one.played,
            "count_b": other.played,
            "mean_a": one.mean if one.played else None,
            "mean_b": other.mean if other.played else None,
            "solved_a": one.solved,
            "solved_b": other.solved,
            "tried": earlier.get(task, _NONE).played + other.played,
            "z": _change(one, other, usual) if one.played and other.played else None,
        }

    rows = [row(task) for task in sorted(b)]
    changed = [
        one for one in rows if one["z"] is not None and one["mean_b"] < one["mean_a"]
    ]
    tried = {task: own.solved for task, own in earlier.items()}
    new = [one for one in rows if one["solved_b"] and tried.get(one["task"]) == 0]
    never = [one for one in rows if not one["solved_b"] and not tried.get(one["task"])]
    always = [
        one
        for one in rows
        if one["solved_b"] == one["count_b"] and one["solved_a"] == one["count_a"] > 0
    ]
    return {
        "tasks": len(rows),
        "episodes": sum(one["count_b"] for one in rows),
        "regressions": _listed(sorted(changed, key=lambda one: one["z"])),
        "new": _listed(sorted(new, key=lambda one: -one["tried"])),
        "never": _listed(sorted(never, key=lambda one: -one["tried"])),
        "always": _listed(sorted(always, key=lambda one: -one["tried"])),
    }


def _listed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    episodes = sum(one["count_b"] for one in rows)
    return {"total": len(rows), "episodes": episodes, "rows": rows[:MOST_TASKS]}


def _variance(task: TaskRewards) -> float:
    return max(0.0, task.mean_square - task.mean**2)


def _usual_variance(tasks: list[TaskRewards]) -> float:
    """Within a task, over all of them; what a task's own few trajectories are drawn towards."""
    weights = sum(max(0, one.played - 1) for one in tasks)
    spread = sum(one.played * _variance(one) for one in tasks if one.played > 1)
    return max(spread / weights if weights else 0.0, _LEAST_VARIANCE)


def _change(a: TaskRewards, b: TaskRewards, usual: float) -> float:
    """The change of the mean in standard errors.

    The usual variance counts as one more trajectory of each range: equal rewards of a few are no
    proof that there is no variance.
    """
    squares = ((one.played * _variance(one) + usual) / one.played**2 for one in (a, b))
    return (b.mean - a.mean) / math.sqrt(sum(squares))


def new_calls(
    earlier: Iterable[Episode], solving: Iterable[Episode]
) -> dict[str, tuple[str, str, bool]]:
    """By task, what solved it: the first episode's id, its calls with an arrow between, and whether
    no earlier episode of the task called so.

    Args:
        earlier: episodes of the tasks, none of which solved its own.
        solving: those that did.
    """
    known: dict[str, set[str]] = {}
    for episode in earlier:
        known.setdefault(episode.task_id, set()).add(_calls(episode))
    found: dict[str, tuple[str, str, bool]] = {}
    for episode in sorted(solving, key=lambda one: (one.step, one.id)):
        calls = _calls(episode)
        is_new = calls not in known.get(episode.task_id, set())
        found.setdefault(episode.task_id, (episode.id, calls, is_new))
    return found


def _calls(episode: Episode) -> str:
    return " → ".join(call for turn in episode.calls for call in turn) or NO_CALL
