"""Views of a group and of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentrl.store import Annotation, TokenArrays
from agentrl.types import SegmentKind
from agentrl.viewer.analysis.side_by_side import group_view, lacks_spread, task_view


def row(rollout: int, reward: float | None, **columns: Any) -> dict[str, Any]:
    return {
        "id": f"3-{rollout}-0",
        "rollout": rollout,
        "attempt": 0,
        "reward": reward,
        "step": 4,
        "purpose": "train",
        "label": "",
        "group_size": 2,
        "drop": "",
        **columns,
    }


def tokens(*ids: int, turns: tuple[int, ...] = ()) -> TokenArrays:
    size = len(ids)
    kinds = np.full(size, SegmentKind.POLICY, np.int8)
    zeros = np.zeros(size, np.int32)
    return TokenArrays(
        np.array(ids, np.int32),
        zeros.astype(np.float32),
        zeros,
        np.array(turns or zeros, np.int32),
        kinds,
        b"",
    )


def annotation(name: str, *advantages: float, weight: tuple[float, ...]) -> Annotation:
    arrays = {"advantages": np.array(advantages), "loss_weight": np.array(weight)}
    return Annotation(name, 4, arrays=arrays)


def test_a_group_has_its_rewards_advantages_and_first_divergence() -> None:
    view = group_view(
        [row(1, 0.0), row(0, 1.0), row(2, None)],
        {
            "3-0-0": tokens(1, 2, 3, 9),
            "3-1-0": tokens(1, 2, 3),
            "3-2-0": tokens(1, 2, 7, 8),
        },
        [annotation("3-0-0", 0.5, 0.5, 9.0, 9.0, weight=(0.1, 0.1, 0.0, 0.0))],
    )

    assert [one["id"] for one in view["rows"]] == ["3-0-0", "3-1-0", "3-2-0"]
    assert (view["reward_mean"], view["reward_std"], view["zero_std"]) == (0.5, 0.5, False)
    assert view["advantages"] == {"3-0-0": {"": 0.5}}
    assert view["shared_tokens"] == 2


def test_each_agent_of_an_episode_has_its_own_advantage() -> None:
    # the mean over the episode would be 0
    view = group_view(
        [row(0, 1.0)],
        {"3-0-0": tokens(1, 2, 3, 4, turns=(0, 1, 1, 2))},
        [
            annotation("3-0-0", 0.5, -0.25, -0.75, 0.5, weight=(0.1, 0.1, 0.1, 0.1)),
            Annotation("3-0-0", 4, learner="critic", arrays={"values": np.zeros(4)}),
        ],
        {"3-0-0": ["planner", "solver", "planner"]},
    )

    assert view["advantages"] == {"3-0-0": {"planner": 0.5, "solver": -0.5}}


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    view = group_view(
        [row(0, 1.0, drop="no_spread"), row(1, 1.0)],
        {"3-0-0": tokens(), "3-1-0": tokens(1)},
    )

    assert (view["zero_std"], view["drop"], view["shared_tokens"]) == (True, "no_spread", 0)


def test_the_greedy_baseline_is_no_rollout_of_its_group() -> None:
    view = group_view(
        [row(0, 1.0), row(1, 1.0), row(2, 0.0, purpose="baseline", drop="baseline")],
        {"3-0-0": tokens(1), "3-1-0": tokens(1), "3-2-0": tokens(1)},
    )

    assert (
        view["reward_mean"],
        view["reward_std"],
        view["zero_std"],
        len(view["rows"]),
    ) == (
        1.0,
        0.0,
        True,
        3,
    )
    # that it is not trained says nothing of the group
    assert view["drop"] == ""


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [({}, True), ({"group_size": 3}, False), ({"label": "code/before/sampled"}, False)],
)
def test_a_lack_of_spread_is_told_of_whole_groups_of_training_alone(
    columns: dict[str, Any], lacks: bool
) -> None:
    assert lacks_spread([row(0, 1.0, **columns), row(1, 1.0, **columns)]) is lacks


def test_a_task_by_policy_version() -> None:
    rows = [
        row(0, 1.0, newest_version=5, turns=2, tool_errors=0),
        row(1, 0.0, newest_version=5, turns=4, tool_errors=None),
        row(2, 0.5, newest_version=1, turns=6),
        row(3, None, newest_version=None),
    ]

    (course,) = task_view(rows)["courses"]

    assert course["version"] == [1, 5]
    assert course["ways"]["train"] == {
        "count": [1.0, 2.0],
        "reward": [0.5, 0.5],
        "turns": [6.0, 3.0],
        "tool_errors": [None, 0.0],
        "policy_tokens": [None, None],
        "calls": [None, None],
    }
    assert (course["first"], course["last"]) == ("3-2-0", "3-0-0")


def test_a_task_averages_neither_stages_nor_ways_of_sampling() -> None:
    greedy = {"purpose": "eval", "label": "code/before/greedy", "newest_version": 0}
    sampled = {**greedy, "label": "code/step 4/sampled"}
    rows = [
        row(0, 1.0, **greedy, stage="rl", recorded_at=9.0),
        row(1, 0.0, **sampled, stage="rl", recorded_at=9.0),
        row(2, 0.5, purpose="train", newest_version=0, stage="warmup", recorded_at=1.0),
    ]

    view = task_view(rows)

    warmup, rl = view["courses"]
    assert (warmup["stage"], rl["stage"], view["rows"][0]["id"]) == (
        "warmup",
        "rl",
        "3-2-0",
    )
    assert {way: own["reward"] for way, own in rl["ways"].items()} == {
        "code greedy": [1.0],
        "code sampled": [0.0],
    }
    assert warmup["ways"]["train"]["reward"] == [0.5]


def test_a_task_that_nobody_played() -> None:
    assert task_view([]) == {"rows": [], "courses": []}
    (course,) = task_view([row(0, None, newest_version=None)])["courses"]
    assert (course["version"], course["ways"], course["first"]) == ([], {}, None)
