"""Tasks: each lies in the list that says what became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from agentrl.viewer.analysis.stored_rows import Episode
from agentrl.viewer.analysis.tasks import MOST_TASKS, new_calls, task_changes
from agentrl.viewer.index import TaskRewards


def rewards(*values: float) -> TaskRewards:
    squares = sum(value**2 for value in values) / len(values)
    return TaskRewards(
        len(values), sum(values) / len(values), squares, sum(map(bool, values))
    )


def episode(name: str, *calls: str, task: str = "t", step: int = 0) -> Episode:
    return Episode(name, task, "", (), (calls,), 0.0, step)


def tasks(found: Sequence[dict[str, object]]) -> list[object]:
    return [row["task"] for row in found]


def test_each_task_is_in_the_list_of_what_became_of_it() -> None:
    a = {"fell": rewards(1, 1, 1, 0), "still": rewards(1, 1), "hard": rewards(0, 0)}
    b = {
        **{name: a[name] for name in a},
        "fell": rewards(0, 0, 0, 0),
        "late": rewards(0, 1),
    }
    found = task_changes(a, {**b, "first": rewards(1)}, {**a, "late": rewards(0, 0, 0)})

    assert (found["tasks"], found["episodes"]) == (5, 11)
    lists = ("regressions", "new", "never", "always")
    assert {name: tasks(found[name]["rows"]) for name in lists} == {
        "regressions": ["fell"],
        "new": ["late"],
        "never": ["hard"],
        "always": ["still"],
    }
    (late,) = found["new"]["rows"]
    assert (late["tried"], late["solved_b"], late["mean_a"], late["z"]) == (
        5,
        1,
        None,
        None,
    )
    assert found["never"]["episodes"] == 2


def test_the_surest_regression_is_first_and_its_z_is_as_by_hand() -> None:
    a = {"few": rewards(1, 1), "many": rewards(*[1] * 8), "noisy": rewards(1, 0, 1, 0)}
    b = {"few": rewards(0, 0), "many": rewards(*[0] * 8), "noisy": rewards(0, 0, 1, 0)}
    found = task_changes(a, b, a)["regressions"]["rows"]

    assert tasks(found) == ["many", "few", "noisy"]
    # sums of squares within: 1 + .75, over 1 + 1 + 7 + 7 + 3 + 3 degrees of freedom
    usual = 1.75 / 22
    assert found[1]["z"] == pytest.approx(-1 / math.sqrt(2 * usual / 4))
    assert found[2]["z"] == pytest.approx(
        -0.25 / math.sqrt((1 + usual + 0.75 + usual) / 16)
    )


def test_a_drop_without_any_variance_has_a_finite_place() -> None:
    found = task_changes({"t": rewards(1)}, {"t": rewards(0)}, {"t": rewards(1)})
    assert math.isfinite(found["regressions"]["rows"][0]["z"])


def test_a_long_list_is_cut_and_says_how_long_it_is() -> None:
    many = {f"t{index}": rewards(0) for index in range(MOST_TASKS + 1)}
    found = task_changes({}, many, {})["never"]
    assert (found["total"], len(found["rows"])) == (MOST_TASKS + 1, MOST_TASKS)


def test_calls_are_new_where_no_earlier_episode_of_the_task_called_so() -> None:
    earlier = [
        episode("0", "python error"),
        episode("1", "search ok", task="u"),
        episode("2"),
    ]
    solving = [
        episode("8", "python error", step=4),
        episode("7", "python error", "python ok", step=3),
        episode("9", "search ok", task="u"),
        episode("6", task="v"),
    ]
    assert new_calls(earlier, solving) == {
        "t": ("7", "python error → python ok", True),
        "u": ("9", "search ok", False),
        "v": ("6", "(no call)", True),
    }
