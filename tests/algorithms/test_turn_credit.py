"""Credit of turns, and shaped rewards, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.algorithms import Rewards, make_algorithm
from agentrl.algorithms.functions.credit import (
    leave_one_out,
    overlong_penalty,
    rank_weights,
    step_advantages,
    turn_returns,
)
from tests.algorithms.made import group_of, rewards_of


def episodes() -> Rewards:
    """A group of two: three turns with a total of 7 of which steps gave 3, and two turns of 2."""
    return rewards_of(
        [7.0, 2.0],
        [0, 0],
        turn_trajectory=np.array([0, 0, 0, 1, 1]),
        turn_reward=np.array([1.0, 0.0, 2.0, 0.0, 2.0]),
        state_key=np.array([5, 6, 5, 5, 0], np.uint64),
    )


def test_a_turns_return_is_discounted_and_the_rest_of_the_total_falls_due_at_the_end() -> (
    None
):
    # the last turn of the first has 2 + (7 - 3) = 6
    assert turn_returns(episodes(), discount=0.5).tolist() == [2.5, 3.0, 6.0, 1.0, 2.0]


def test_steps_are_compared_where_the_state_is_the_same() -> None:
    # state 5 was met with returns 2.5, 6 and 1 (mean 19/6); 6 and 0 stand alone
    found = step_advantages(episodes(), discount=0.5, scale=False, eps=0.0)
    mean = 9.5 / 3
    assert found.tolist() == pytest.approx([2.5 - mean, 0.0, 6 - mean, 1 - mean, 0.0])


def test_a_state_of_another_group_is_another_state() -> None:
    rewards = rewards_of([1.0, 5.0], [0, 1], state_key=np.array([9, 9], np.uint64))
    assert step_advantages(rewards, discount=1.0, scale=False, eps=0.0).tolist() == [
        0.0,
        0.0,
    ]


def test_gigpo_adds_steps_to_trajectories() -> None:
    credit = make_algorithm("gigpo", {"discount": 0.5, "step_weight": 2.0}).credit(
        episodes(), {}
    )
    assert credit.trajectory.tolist() == [2.5, -2.5]
    mean = 9.5 / 3
    steps = [2.5 - mean, 0.0, 6 - mean, 1 - mean, 0.0]
    assert credit.turn.tolist() == pytest.approx([2 * step for step in steps])


@pytest.mark.parametrize("name", ["gigpo", "turn_grpo"])
def test_equal_rewards_teach_where_they_came_after_other_turns(name: str) -> None:
    rewards = rewards_of(
        [1.0, 1.0],
        [0, 0],
        turn_trajectory=np.array([0, 0, 1, 1]),
        turn_reward=np.array([1.0, 0.0, 0.0, 1.0]),
        state_key=np.array([5, 6, 5, 6], np.uint64),
    )
    algorithm = make_algorithm(name)
    assert algorithm.credit(rewards, {}).turn.any()
    assert algorithm.keep_group(group_of(1, 1)).keep


def test_turn_grpo_compares_turns_of_one_number() -> None:
    credit = make_algorithm("turn_grpo", {"discount": 0.5}).credit(episodes(), {})
    assert credit.trajectory.tolist() == [0.0, 0.0]
    assert credit.turn.tolist() == [0.75, 0.5, 0.0, -0.75, -0.5]


def test_leave_one_out_is_against_the_others() -> None:
    found = leave_one_out(np.array([3.0, 0.0, 0.0, 8.0, 2.0]), np.array([0, 0, 0, 1, 1]))
    assert found.tolist() == pytest.approx([3.0, -1.5, -1.5, 6.0, -6.0])


@pytest.mark.parametrize(
    ("baseline", "expected"), [("none", [4.0, 0.0]), ("group", [-0.5, -4.5])]
)
def test_reinforce_gives_turns_their_own_rewards(
    baseline: str, expected: list[float]
) -> None:
    credit = make_algorithm("reinforce_plus_plus", {"baseline": baseline}).credit(
        episodes(), {}
    )
    assert credit.trajectory.tolist() == expected
    assert credit.turn.tolist() == [1.0, 0.0, 2.0, 0.0, 2.0]


def test_the_penalty_for_length_grows_over_its_buffer() -> None:
    found = overlong_penalty(np.array([5, 6, 8, 10, 99]), max_tokens=10, buffer_tokens=4)
    assert found.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_dapo_shapes_rewards_before_they_are_compared() -> None:
    overlong = {"max_tokens": 10, "buffer_tokens": 4, "penalty": 2.0}
    spec = make_algorithm("dapo", {"overlong": overlong, "scale_rewards": "none"})
    rewards = rewards_of([1.0, 1.0], [0, 0], num_tokens=np.array([6, 8]))
    assert spec.credit(rewards, {}).trajectory.tolist() == [0.5, -0.5]


def test_truncated_trajectories_are_left_out_where_that_is_asked_for() -> None:
    rewards = rewards_of([1.0, 0.0], [0, 0], truncated=np.array([False, True]))
    assert make_algorithm("dapo").select is None
    select = make_algorithm("dapo", {"overlong_filter": True}).select
    assert select is not None
    assert select(rewards).tolist() == [1.0, 0.0]


def test_the_best_and_the_worst_of_a_group_are_trained() -> None:
    rewards = rewards_of([1.0, 3.0, 2.0, 5.0, 4.0], [0, 0, 0, 1, 1])
    assert rank_weights(rewards, keep="best_worst").tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_of_equals_the_seed_draws_one() -> None:
    rewards = [1.0] * 6
    drawn = {
        tuple(
            rank_weights(
                rewards_of(rewards, [0] * 6, seed=seed), keep="best_random"
            ).tolist()
        )
        for seed in range(20)
    }
    assert len(drawn) > 3
    assert all(sum(weights) == 2 for weights in drawn)
    alone = rewards_of([1.0], [0])
    assert rank_weights(alone, keep="best_random").tolist() == [1.0]
