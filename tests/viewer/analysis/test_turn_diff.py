"""Two trajectories turn by turn: where they part, and what differs."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentrl.types import Segment, SegmentKind, Task, Trajectory, Turn
from agentrl.viewer.analysis.side_by_side import turn_diff
from tests.kit.episodes import sampled, user
from tests.kit.episodes import trajectory as made_trajectory
from tests.kit.episodes import turn as made_turn


def turn(index: int, text: str, *ids: int, observed: str = "go on") -> Turn:
    prompt = Segment(SegmentKind.PROMPT, np.array([1, 2]))
    return made_turn(index, [prompt], [sampled(ids, 0.0)], text, observed=(user(observed),))


def trajectory(*turns: Turn, rollout: int = 0, **changes: Any) -> Trajectory:
    task = Task("t", (user("go on"),), None, "x")
    return made_trajectory(*turns, task=task, rollout=rollout, **{"reward": 1.0, **changes})


def test_equal_trajectories_have_no_difference() -> None:
    found = turn_diff(trajectory(turn(0, "a", 5)), trajectory(turn(0, "a", 5), rollout=1))
    assert found["first_divergence"] is None
    assert found["result"] == {}
    assert [(pair["a"], pair["b"], pair["equal"]) for pair in found["turns"]] == [(0, 0, True)]


def test_the_first_token_that_differs_is_named_with_its_turn() -> None:
    a = trajectory(turn(0, "a", 5), turn(1, "say one", 6, 7))
    b = trajectory(turn(0, "a", 5), turn(1, "say two", 6, 8), rollout=1, reward=0.0)
    found = turn_diff(a, b)
    # 2 + 1 tokens of turn 0, 2 of the prompt of turn 1, then 6
    assert found["first_divergence"] == {
        "token": 6,
        "turn_a": 1,
        "id_a": 7,
        "kind_a": "policy",
        "turn_b": 1,
        "id_b": 8,
        "kind_b": "policy",
    }
    assert found["result"] == {"reward": {"a": 1.0, "b": 0.0}}
    differences = found["turns"][1]["differences"]
    assert list(differences) == ["text"]
    assert differences["text"]["changes"] == [["=", "say "], ["a", "one"], ["b", "two"]]


def test_a_turn_without_a_partner_stands_alone_and_later_ones_align() -> None:
    a = trajectory(turn(0, "a", 5), turn(1, "b", 6), turn(2, "c", 7))
    b = trajectory(turn(0, "a", 5), turn(1, "c", 7), rollout=1)
    found = turn_diff(a, b)
    assert [(pair["a"], pair["b"]) for pair in found["turns"]] == [(0, 0), (1, None), (2, 1)]


def test_a_trajectory_that_ended_earlier_has_no_token_there() -> None:
    found = turn_diff(trajectory(turn(0, "a", 5)), trajectory(turn(0, "a", 5), turn(1, "b", 6)))
    divergence = found["first_divergence"]
    assert (divergence["token"], divergence["turn_a"], divergence["turn_b"]) == (3, None, 1)


def test_long_texts_are_compared_line_by_line_and_soon() -> None:
    words = "word " * 6000
    a = trajectory(turn(0, f"{words}\none\n{words}", 5))
    b = trajectory(turn(0, f"{words}\ntwo\n{words}", 5), rollout=1)
    changes = turn_diff(a, b)["turns"][0]["differences"]["text"]["changes"]
    assert [side for side, _ in changes] == ["=", "a", "b", "="]
