"""Each built-in record on one small batch, from rewards to the loss, worked by hand.

One group of two trajectories of one turn. The first has the tokens a and b and the reward 1, the
second the token c and the reward 0. The old policy gave each of them a probability of .2; the
current one gives .3, .2 and .1, so the ratios are 1.5, 1 and .5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.algorithms import (
    ALGORITHMS,
    AlgorithmSpec,
    PairInputs,
    PolicyInputs,
    Rewards,
    ValueInputs,
    make_algorithm,
)
from tests.algorithms.made import counts_of, policy_inputs, rewards_of, token_credit

TRAJECTORY = torch.tensor([0, 0, 1])
LAST = torch.tensor([0.0, 1.0, 1.0])
OLD = torch.tensor([0.2, 0.2, 0.2]).log()
NEW = torch.tensor([0.3, 0.2, 0.1])
REFERENCE = torch.tensor([0.4, 0.2, 0.1]).log()
VALUES = torch.tensor([0.5, 0.5, 0.25])


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


A = 0.5 / (sqrt(0.5) + 1e-4)
"""The advantage over the group: .5 from the mean, by a sample deviation of √.5; c has -A."""

EXPECTED: Mapping[str, tuple[dict[str, Any], float]] = {
    # a is clipped at 1.28, c at .8
    "grpo": ({}, (-1.28 * A - A + 0.8 * A) / 3),
    "dapo": ({}, (-1.28 * A - A + 0.8 * A) / 3),
    # beside it .1 of the nats of one observation, whose probability is .5
    "echo": ({}, (-1.28 * A - A + 0.8 * A) / 3 + 0.1 * log(2)),
    # advantages ±.5, clipped at 1.2; two trajectories, and a length of 1,024
    "dr_grpo": ({}, (-0.6 - 0.5 + 0.4) / 2 / 1024),
    # 1 - 0 and 0 - 1
    "rloo": ({}, (-1.2 - 1.0 + 0.8) / 3),
    # the greedy rollout's reward is .5
    "remax": ({}, (-0.6 - 0.5 + 0.4) / 3),
    # returns 1, 1, 0: mean 2/3 and deviation √2/3, so 1/√2, 1/√2, -√2
    "reinforce_plus_plus": ({}, (-1.2 - 1.0 + 1.6) / sqrt(2) / 3),
    # the geometric means √1.5 and .5 are both outside the bounds
    "gspo": ({}, (-1.0004 * A + 0.9997 * A) / 2),
    # the ratio weighs -A log π, unclipped
    "cispo": ({}, (-1.5 * A * log(0.3) - A * log(0.2) + 0.5 * A * log(0.1)) / 3),
    # gates 4σ(.5), 2, and (4 / 1.05) σ(-.525); a trajectory's mean, then theirs
    "sapo": (
        {},
        (-(4 * sigmoid(0.5) + 2) / 2 * A + 4 / 1.05 * sigmoid(-0.525) * A) / 2,
    ),
    # |.1 - .2| is above .05 and c would become rarer still, so it is left out
    "dppo": ({"clip_low": 0.05}, (-1.5 * A * log(0.3) - A * log(0.2)) / 3),
    # both turns begin in one state: ±.5 of the trajectory and ±.5 of the step
    "gigpo": ({}, (-1.28 - 1.0 + 0.8) / 3),
    # the turns' returns 1 and 0
    "turn_grpo": ({}, 0.5 * (-1.28 - 1.0 + 0.8) / 3),
    # b: 1 - .5; a: .95 · .5; c: -.25; normalised by their mean .241667 and deviation .347811
    "ppo": ({}, (-1.2 * 0.670867 - 0.742745 + 0.8 * 1.413612) / 3),
    "pf_ppo": ({}, (-1.2 * 0.670867 - 0.742745 + 0.8 * 1.413612) / 3),  # both are kept
    # λ is 0 at these lengths: 0, .5, -.25 with mean 1/12 and deviation .311805; a has a negative
    # advantage and is not clipped. Beside it .1 of the mean nats of a and b, which were right
    "vapo": (
        {},
        (1.5 * 0.267261 - 1.336306 + 0.8 * 1.069045) / 3 + 0.1 * (-log(0.3) - log(0.2)) / 2,
    ),
    # the teacher's log ratios to the old policy: log 2, 0, -log 2
    "distillation": ({}, (-1.28 * log(2) + 0.8 * log(2)) / 3),
    "sft": ({}, (-log(0.3) - log(0.2) - log(0.1)) / 3),
    # scores 1.5 and .5, the margin of the rewards 1, and .01 of the square of the scores' sum
    "reward_model": ({"centring": 0.01}, log(2) + 0.04),
}


def test_every_record_has_an_example() -> None:
    assert EXPECTED.keys() == ALGORITHMS.keys()


def rewards() -> Rewards:
    return rewards_of(
        [1.0, 0.0],
        [0, 0],
        num_tokens=np.array([2, 1]),
        state_key=np.full(2, 7, np.uint64),
        baseline=np.full(2, 0.5),
    )


def advantages_of(spec: AlgorithmSpec) -> tuple[Tensor, Tensor | None]:
    credit = spec.credit(rewards(), {})
    trajectory, turn = (
        torch.from_numpy(one)[TRAJECTORY] for one in (credit.trajectory, credit.turn)
    )
    found = spec.advantages(
        token_credit(
            torch.ones(3),
            trajectory=trajectory,
            turn=turn,
            reward=(trajectory + turn) * LAST,
            turn_row=TRAJECTORY,
            sample_row=TRAJECTORY,
            trajectory_row=TRAJECTORY,
            old_logprobs=OLD,
            ref_logprobs=REFERENCE,
            values=VALUES,
            final_values=torch.zeros(3),
        )
    )
    own = found.advantages.double()
    if spec.normalize_advantages:
        own = (own - own.mean()) / own.std(correction=0)
    return own, found.returns


def inputs_of(spec: AlgorithmSpec, advantages: Tensor) -> PolicyInputs:
    return policy_inputs(
        NEW.log(),
        old_logprobs=OLD,
        rollout_logprobs=OLD,
        advantages=advantages,
        sample_row=TRAJECTORY,
        ref_logprobs=REFERENCE if spec.needs.reference else None,
    )


def auxiliary_of(spec: AlgorithmSpec) -> float:
    """The mean of each auxiliary loss over its tokens: an observation of probability .5 for ECHO,
    a and b for VAPO."""
    tokens = {"echo": torch.tensor([0.5]), "vapo": NEW[:2]}
    return sum(
        one.coef * one.loss(policy_inputs(tokens[spec.name].log())).loss.mean().item()
        for one in spec.auxiliary
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_the_loss_of_the_batch_by_hand(name: str) -> None:
    settings, expected = EXPECTED[name]
    spec = make_algorithm(name, settings)
    if spec.pair_loss is not None:
        credit = spec.credit(rewards(), {}).trajectory
        pair = PairInputs(
            torch.tensor([1.5]), torch.tensor([0.5]), torch.tensor([credit[0] - credit[1]])
        )
        assert spec.pair_loss(pair).loss.item() == pytest.approx(expected, abs=1e-6)
        return
    assert spec.policy_loss is not None
    advantages, _ = advantages_of(spec)
    selected = None if spec.select is None else spec.select(rewards())
    weight = spec.reduction(counts_of([2, 1], [0, 1], selected))
    outcome = spec.policy_loss(inputs_of(spec, advantages))
    loss = (outcome.loss * torch.from_numpy(weight)[TRAJECTORY]).sum().item()
    assert not outcome.terms
    assert loss + auxiliary_of(spec) == pytest.approx(expected, abs=2e-6)


def test_a_critic_learns_advantages_plus_values() -> None:
    # ppo: .475 + .5, .5 + .5, -.25 + .25; half the mean square of what is missing
    spec = make_algorithm("ppo")
    _, returns = advantages_of(spec)
    assert returns is not None
    assert returns.tolist() == pytest.approx([0.975, 1.0, 0.0])
    assert spec.value_loss is not None
    loss = spec.value_loss(ValueInputs(VALUES, VALUES, returns)).loss.mean().item()
    assert loss == pytest.approx((0.475**2 + 0.5**2 + 0.25**2) / 2 / 3)


def test_a_rejected_trajectory_of_pf_ppo_weighs_nothing() -> None:
    spec = make_algorithm("pf_ppo")
    assert spec.select is not None
    three = rewards_of([1.0, 0.5, 0.0], [0, 0, 0])
    assert spec.select(three).tolist() == [1.0, 0.0, 1.0]
    assert spec.select(replace(three, seed=5)).tolist() == [1.0, 0.0, 1.0]
