"""Credit beside the rollouts: values by hand, and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import zscore

from agentrl.algorithms import make_algorithm
from agentrl.algorithms.functions.credit import group_advantages, keep_informative_group
from agentrl.errors import ConfigError, RewardError
from tests.algorithms.made import group_of, rewards_of


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_advantages_are_centred_on_their_own_group() -> None:
    # group means are 0.5 and 10: mixing the groups would give a mean of 5.25
    got = group_advantages(
        floats(0, 1, 9, 11), np.array([0, 0, 1, 1]), scale_rewards="none"
    )
    assert got.tolist() == [-0.5, 0.5, -1.0, 1.0]


def test_std_divides_by_the_sample_deviation_plus_eps() -> None:
    # mean 1, deviations -1 0 1, sample variance (1 + 0 + 1) / 2 = 1
    got = group_advantages(floats(0, 1, 2), np.zeros(3, int), scale_rewards="std", eps=0.25)
    assert got.tolist() == [-0.8, 0.0, 0.8]


def test_rollouts_need_not_be_neighbours() -> None:
    got = group_advantages(
        floats(0, 9, 1, 11), np.array([7, 3, 7, 3]), scale_rewards="none"
    )
    assert got.tolist() == [-0.5, -1.0, 0.5, 1.0]


def test_a_failed_rollout_leaves_its_group() -> None:
    # 4 started, the one that failed is absent: the baseline is the mean of three
    assert group_advantages(
        floats(0, 0, 3), np.zeros(3, int), scale_rewards="none"
    ).tolist() == [
        -1.0,
        -1.0,
        2.0,
    ]


def test_a_group_of_equal_rewards_gets_exact_zeros() -> None:
    # the mean of three times 0.1 is not 0.1 in floating point
    assert group_advantages(floats(0.1, 0.1, 0.1), np.zeros(3, int), eps=0.0).tolist() == [
        0.0,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(RewardError, match=r"must be finite, got .* at position 1"):
        group_advantages(floats(0, bad), np.zeros(2, int))
    with pytest.raises(RewardError, match="rewards of group 5"):
        keep_informative_group(group_of(0, bad, index=5))


def test_a_single_trajectory_has_no_baseline() -> None:
    with pytest.raises(ValueError, match="group 4 has one finished trajectory"):
        group_advantages(floats(1, 2, 3), np.array([1, 1, 4]))


@given(
    groups=st.lists(
        st.lists(st.integers(-50, 50), min_size=2, max_size=6).filter(
            lambda group: len(set(group)) > 1
        ),
        min_size=1,
        max_size=4,
    )
)
def test_std_agrees_with_scipys_zscore(groups: list[list[int]]) -> None:
    reward = np.concatenate([np.array(group, dtype=np.float64) for group in groups])
    rows = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    expected = np.concatenate(
        [zscore(np.array(group, dtype=np.float64), ddof=1) for group in groups]
    )
    np.testing.assert_allclose(
        group_advantages(reward, rows, eps=0.0), expected, rtol=1e-9, atol=1e-9
    )


def test_groups_that_teach_nothing_are_dropped_with_a_reason() -> None:
    keep_group = make_algorithm("grpo").keep_group
    assert keep_group(group_of(0, 1)).keep
    assert keep_group(group_of(1, 1)).reason == "no_spread"
    assert keep_group(group_of(1)).reason == "too_few_finished"


def test_groups_without_spread_can_be_kept() -> None:
    assert (
        make_algorithm("grpo", {"filter_zero_variance": False})
        .keep_group(group_of(1, 1))
        .keep
    )


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus", "remax"])
def test_a_group_of_one_teaches_where_nothing_is_compared_within_it(name: str) -> None:
    assert make_algorithm(name).keep_group(group_of(1)).keep


def test_remax_compares_with_the_greedy_rollout() -> None:
    remax = make_algorithm("remax")
    rewards = rewards_of(
        floats(1, 0, 1, 1), np.array([0, 0, 1, 1]), baseline=floats(1, 1, 0, 0)
    )
    assert remax.credit(rewards, {}).trajectory.tolist() == [0.0, -1.0, 1.0, 1.0]
    assert remax.needs.baseline
    assert remax.keep_group(group_of(1, 1)).keep  # the greedy rollout's may differ
    with pytest.raises(ValueError, match=r"rewards.baseline is missing"):
        remax.credit(rewards_of(floats(1, 0), np.zeros(2, int)), {})
    with pytest.raises(ConfigError, match="filter_zero_variance must be false for remax"):
        make_algorithm("remax", {"filter_zero_variance": True})


def test_credit_goes_to_trajectories_and_none_to_turns() -> None:
    credit = make_algorithm("grpo", {"scale_rewards": "none"}).credit(
        rewards_of(floats(0, 2), np.zeros(2, int)), {}
    )
    assert credit.trajectory.tolist() == [-1.0, 1.0]
    assert credit.turn.tolist() == [0.0, 0.0]


def test_imitation_assigns_no_credit() -> None:
    credit = make_algorithm("sft").credit(rewards_of(floats(1, 2), np.zeros(2, int)), {})
    assert credit.trajectory.tolist() == [0.0, 0.0]
