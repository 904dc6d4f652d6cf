"""What an algorithm returns of a batch's rewards is checked before it is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentrl.algorithms import Credit, make_algorithm
from agentrl.controller.group_rewards import checked_credit, checked_weights
from agentrl.errors import RewardError, TrainingError
from tests.algorithms.made import rewards_of

REWARDS = rewards_of([1.0, 0.0, 2.0], [0, 0, 1])
WHOSE = "GRPOSettings.credit='own.py:f'"


@pytest.mark.parametrize(
    ("trajectory", "told"),
    [
        (
            np.array([0.0, np.nan, np.nan]),
            "finite numbers, got nan for trajectory 1 .* (2 in all)",
        ),
        (
            np.array([np.inf, 0.0, 0.0]),
            "finite numbers, got inf for trajectory 0 of the batch",
        ),
        (np.zeros(2), r"one number a trajectory, an array of shape (3,), got (2,)"),
        ([0.0, 0.0, 0.0], r"one number a trajectory, an array of shape (3,), got list"),
    ],
)
def test_credit_that_does_not_fit_names_its_function(trajectory: Any, told: str) -> None:
    credit = Credit(trajectory, np.zeros(REWARDS.turn_reward.shape))
    told = told.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(
        TrainingError, match=rf"^{WHOSE} for trajectories must return {told}"
    ):
        checked_credit(credit, REWARDS, WHOSE)


def test_weights_are_finite_and_at_least_zero() -> None:
    assert checked_weights(np.array([0.0, 1.0, 2.0]), REWARDS, "select").tolist() == [
        0,
        1,
        2,
    ]
    for weights, told in (
        (
            np.array([0.0, -1.0, 2.0]),
            r"select must return weights of at least 0, got -1\.0",
        ),
        (np.array([0.0, np.nan, 2.0]), "select must return finite numbers, got nan"),
        (np.ones(4), r"select must return one number a trajectory, .* got \(4,\)"),
    ):
        with pytest.raises(TrainingError, match=told):
            checked_weights(weights, REWARDS, "select")


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "turn_grpo", "gigpo"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rewards_that_are_not_finite_never_become_credit(name: str, value: float) -> None:
    algorithm = make_algorithm(name)
    with pytest.raises((RewardError, TrainingError), match=r"must (be|return) finite"):
        checked_credit(
            algorithm.credit(rewards_of([1.0, value, 2.0], [0, 0, 0]), {}),
            REWARDS,
            algorithm.told("credit"),
        )
