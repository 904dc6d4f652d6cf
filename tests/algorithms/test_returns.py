"""Returns and generalised advantages in the order of turns, by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, tensor

from agentrl.algorithms import (
    ALGORITHMS,
    KLInReward,
    PolicyGradientSettings,
    TokenCredit,
    make_algorithm,
)
from agentrl.algorithms.functions.returns import (
    Bootstrap,
    critic_advantages,
    discounted_returns,
    generalized_advantages,
    kl_reward,
    length_adaptive_lambda,
    return_advantages,
    reverse_kl_advantages,
)
from agentrl.errors import ConfigError
from tests.algorithms.made import token_credit

# trajectory 0 has turns 0 and 1; turn 1 lies in the shard before turn 0, and a tool's token within.
# trajectory 1 has turn 2.
MASK = tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
TURN = tensor([1, 1, 1, 0, 0, 2])
OWNER = tensor([0, 0, 0, 0, 0, 1])


def credit(reward: list[float], **columns: Tensor) -> TokenCredit:
    return token_credit(
        MASK, turn_row=TURN, trajectory_row=OWNER, reward=tensor(reward), **columns
    )


def test_a_return_goes_back_over_turns_and_samples_but_not_over_trajectories() -> None:
    given = credit([0.0, 8.0, 99.0, 4.0, 99.0, 1.0])
    found = discounted_returns(given, discount=0.5, reward=given.reward)
    # in order: turn 0 (4), turn 1 (0, then 8): 8; 0 + .5·8; 4 + .5·4
    assert found.tolist() == [4.0, 8.0, 0.0, 6.0, 0.0, 1.0]


def test_the_kl_is_taken_off_each_tokens_reward() -> None:
    given = credit(
        [0.0, 8.0, 0.0, 4.0, 0.0, 1.0],
        old_logprobs=tensor([-1.0, -1.0, 0.0, -2.0, 0.0, -3.0]),
        ref_logprobs=tensor([-2.0, -1.0, 0.0, -2.0, 0.0, -1.0]),
    )
    found = return_advantages(given, discount=1.0, kl_coef=0.5).advantages
    assert found.tolist() == [7.5, 8.0, 0.0, 11.5, 0.0, 2.0]


def test_an_adapted_kl_has_the_current_weight() -> None:
    given = credit(
        [0.0, 8.0, 0.0, 4.0, 0.0, 1.0],
        old_logprobs=torch.zeros(6),
        ref_logprobs=torch.full((6,), -1.0),
        state={"kl_coef": 2.0},
    )
    found = return_advantages(given, discount=1.0, kl_coef=0.5).advantages
    assert found.tolist() == [4.0, 6.0, 0.0, 6.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("bootstrap", "final"), [("none", 0.0), ("infrastructure", 0.0), ("all", 10.0)]
)
def test_generalised_advantages_by_hand(bootstrap: Bootstrap, final: float) -> None:
    given = credit(
        [0.0, 8.0, 0.0, 4.0, 0.0, 1.0],
        values=tensor([1.0, 2.0, 50.0, 3.0, 50.0, 6.0]),
        final_values=tensor([0.0, 10.0, 0.0, 0.0, 0.0, 7.0]),
        cut=OWNER == 0,
        interrupted=torch.zeros(6, dtype=torch.bool),
    )
    found = generalized_advantages(
        given, discount=0.5, lam=0.5, bootstrap=bootstrap, reward=given.reward
    )
    last = 8 + 0.5 * final - 2.0
    second = 0 + 0.5 * 2.0 - 1.0 + 0.25 * last
    first = 4 + 0.5 * 1.0 - 3.0 + 0.25 * second
    assert found.tolist() == pytest.approx([second, last, 0.0, first, 0.0, 1.0 - 6.0])


def test_a_straggler_is_bootstrapped_where_limits_are_not() -> None:
    given = credit(
        [0.0] * 6,
        values=torch.zeros(6),
        final_values=tensor([0.0, 10.0, 0.0, 0.0, 0.0, 7.0]),
        cut=torch.ones(6, dtype=torch.bool),
        interrupted=OWNER == 1,
    )
    found = generalized_advantages(
        given, discount=1.0, lam=1.0, bootstrap="infrastructure", reward=given.reward
    )
    assert found.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 7.0]


def test_lambda_one_is_the_return_less_the_value() -> None:
    given = credit(
        [0.0, 8.0, 0.0, 4.0, 0.0, 1.0],
        values=tensor([1.0, 2.0, 0.0, 3.0, 0.0, 6.0]),
        final_values=torch.zeros(6),
    )
    advantages = generalized_advantages(
        given, discount=0.9, lam=1.0, bootstrap="none", reward=given.reward
    )
    returns = discounted_returns(given, discount=0.9, reward=given.reward)
    assert given.values is not None
    torch.testing.assert_close(advantages, (returns - given.values) * MASK)


def test_a_lambda_may_differ_between_trajectories() -> None:
    given = credit(
        [0.0, 8.0, 0.0, 4.0, 0.0, 1.0],
        values=torch.zeros(6),
        final_values=torch.zeros(6),
    )
    by_token = torch.where(OWNER == 0, 0.0, 1.0)
    found = generalized_advantages(
        given, discount=1.0, lam=by_token, bootstrap="none", reward=given.reward
    )
    assert found.tolist() == [0.0, 8.0, 0.0, 4.0, 0.0, 1.0]


def test_a_shard_without_trained_tokens_has_no_returns() -> None:
    given = token_credit(torch.zeros(3))
    assert (
        discounted_returns(given, discount=1.0, reward=given.reward).tolist() == [0.0] * 3
    )


def test_lambda_by_length_is_a_trajectorys_own() -> None:
    # trajectory 0 has three trained tokens, trajectory 1 one: 1 - 1 / (.5 · 3), and 0
    found = length_adaptive_lambda(credit([0.0] * 6), alpha=0.5)
    assert found.tolist() == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3, 0.0, 0.0])


def test_returns_may_have_a_lambda_of_their_own() -> None:
    given = credit(
        [0.0, 8.0, 0.0, 4.0, 0.0, 1.0],
        values=tensor([1.0, 2.0, 0.0, 3.0, 0.0, 6.0]),
        final_values=torch.zeros(6),
    )
    found = critic_advantages(given, discount=1.0, lam=0.0, lam_value=1.0, bootstrap="none")
    # one step: r + V' - V; the whole return is what the values should be
    assert found.advantages.tolist() == [1.0, 6.0, 0.0, 2.0, 0.0, -5.0]
    assert found.returns is not None
    assert found.returns.tolist() == [8.0, 8.0, 0.0, 12.0, 0.0, 1.0]


def test_distillation_pays_what_the_teacher_thinks_more_of_a_token() -> None:
    given = credit(
        [9.0] * 6,
        old_logprobs=tensor([-1.0, -2.0, -7.0, -3.0, 0.0, -4.0]),
        ref_logprobs=tensor([-2.0, -1.0, -7.0, -3.0, 0.0, -1.0]),
    )
    assert reverse_kl_advantages(given).advantages.tolist() == [
        -1.0,
        1.0,
        0.0,
        0.0,
        0.0,
        3.0,
    ]


IN_REWARD = ("ppo", "pf_ppo", "vapo", "remax", "reinforce_plus_plus")


def test_a_kl_in_the_reward_has_the_gradient_of_the_kl() -> None:
    # exact over six tokens: credit times the gradient of a logprob, weighed by the policy
    logits = torch.tensor([0.3, -1.0, 2.0, 0.1, -0.4, 0.7], dtype=torch.float64)
    logits.requires_grad_(True)
    logprobs = logits.log_softmax(0)
    reference = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64).log_softmax(0)
    given = credit([0.0] * 6, old_logprobs=logprobs.detach(), ref_logprobs=reference)
    given = replace(given, mask=torch.ones(6))
    reward = kl_reward(given, kl_coef=0.5)
    surrogate = (logprobs.exp().detach() * reward * logprobs).sum()
    (found,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
    kl = (logprobs.exp() * (logprobs - reference)).sum()
    (wanted,) = torch.autograd.grad(-0.5 * kl, logits)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_who_has_the_kl_in_the_reward() -> None:
    kinds = {name: entry.settings for name, entry in ALGORITHMS.items()}
    assert {name for name, kind in kinds.items() if issubclass(kind, KLInReward)} == {
        *IN_REWARD
    }
    for name, kind in kinds.items():
        if issubclass(kind, PolicyGradientSettings) and name != "distillation":
            in_loss = "kl" in make_algorithm(name, {"kl_coef": 0.1}).terms
            assert in_loss == (name not in IN_REWARD), name


@pytest.mark.parametrize("name", IN_REWARD)
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("kl_estimator", one) for one in ("k2", "k3", "k1+", "k3+")),
        ("kl_cap", 10.0),
        ("kl_weighted", True),
    ],
)
def test_a_kl_in_the_reward_is_k1_alone(name: str, setting: str, value: object) -> None:
    got = re.escape(repr(value))
    pattern = rf"\.{setting} must be .*whose KL is in the reward.*got {got}; leave"
    with pytest.raises(ConfigError, match=pattern):
        make_algorithm(name, {"kl_coef": 0.1, setting: value})
    assert make_algorithm(name, {"kl_coef": 0.1, "kl_target": 0.5}).initial_state == {
        "kl_coef": 0.1
    }
