"""Expected gradients of the algorithms' own functions, over all sequences of a small action space.

A policy of three tokens and two places is a table of logits, so that an expectation is a sum over
nine sequences. Axes: P places, V tokens, Y sequences, N tokens of all sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.algorithms import AlgorithmSpec, Counts, Rewards, TokenCredit, make_algorithm
from agentrl.algorithms.functions import returns, token_terms
from tests.algorithms.made import policy_inputs, rewards_of, token_credit

P, V = 2, 3
SEQUENCES = torch.tensor(list(itertools.product(range(V), repeat=P)))
Y = len(SEQUENCES)
ROWS = torch.arange(Y).repeat_interleave(P)
"""``[N]``: the sequence of each token."""
REWARD = torch.tensor([0.0, 1.0, 0.2, 0.7, 0.1, 0.0, 0.3, 0.9, 0.5], dtype=torch.float64)
"""``[Y]``."""


@dataclass(frozen=True, eq=False)
class Policy:
    """Logits of the first token ``[V]``, and of the second behind each first ``[V, V]``."""

    first: Tensor
    second: Tensor

    @classmethod
    def drawn(cls, seed: int, scale: float = 1.0) -> Policy:
        made = torch.Generator().manual_seed(seed)
        logits = scale * torch.randn(1 + V, V, generator=made, dtype=torch.float64)
        return cls(logits[0].clone().requires_grad_(), logits[1:].clone().requires_grad_())

    def tokens(self) -> Tensor:
        """``[N]`` logprobs of every sequence's tokens."""
        one = torch.log_softmax(self.first, -1)[SEQUENCES[:, 0]]
        two = torch.log_softmax(self.second, -1)[SEQUENCES[:, 0], SEQUENCES[:, 1]]
        return torch.stack([one, two], 1).flatten()

    def sequences(self) -> Tensor:
        """``[Y]`` logprobs."""
        return self.tokens().reshape(Y, P).sum(1)

    def gradient(self, of: Tensor) -> Tensor:
        """``[V + V·V]`` derivatives by all logits."""
        found = torch.autograd.grad(of, [self.first, self.second], allow_unused=True)
        parts = zip(found, (self.first, self.second), strict=True)
        return torch.cat(
            [(torch.zeros_like(at) if g is None else g).flatten() for g, at in parts]
        )


def objective(policy: Policy, reference: Policy, beta: float) -> Tensor:
    """E[R] - β·KL(policy, reference), whose gradient autograd knows."""
    logprobs = policy.sequences()
    distance = logprobs - reference.sequences().detach()
    return (logprobs.exp() * (REWARD - beta * distance)).sum()


def by_token(policy: Policy, reference: Policy, **columns: Any) -> TokenCredit:
    """All sequences as trajectories of one turn, whose reward falls due on the last token."""
    due = torch.zeros(Y, P, dtype=torch.float64)
    due[:, -1] = REWARD
    own = {
        "trajectory": REWARD[ROWS],
        "reward": due.flatten(),
        "turn_row": ROWS,
        "sample_row": ROWS,
        "trajectory_row": ROWS,
        "old_logprobs": policy.tokens().detach(),
        "ref_logprobs": reference.tokens().detach(),
    }
    return token_credit(torch.ones(Y * P, dtype=torch.float64), **(own | columns))


def expected_ascent(spec: AlgorithmSpec, policy: Policy, credit: TokenCredit) -> Tensor:
    """What the algorithm's advantages and loss ascend in expectation over its own samples."""
    inputs = policy_inputs(
        policy.tokens(),
        sample_row=ROWS,
        advantages=spec.advantages(credit).advantages,
        ref_logprobs=credit.ref_logprobs,
    )
    assert spec.policy_loss is not None
    probability = policy.sequences().detach().exp()[ROWS]
    return policy.gradient(-(probability * spec.policy_loss(inputs).loss).sum())


KL_IN_REWARD = ["ppo", "pf_ppo", "vapo", "remax", "reinforce_plus_plus"]
BETA = 0.5


def made(name: str, **settings: Any) -> AlgorithmSpec:
    whole_returns = {"gae": {"lam": 1.0}} if name in ("ppo", "pf_ppo") else {}
    if name == "vapo":  # λ = 1 - 1 / (α · 2)
        whole_returns = {"gae": {"length_alpha": 1e9}}
    return make_algorithm(name, {"kl_coef": BETA, **whole_returns, **settings})


def values_of(name: str) -> dict[str, Tensor]:
    """What a critic says of each state, which is right nowhere."""
    if not make_algorithm(name, {}).needs.critic:
        return {}
    # of the first token's state
    first = torch.tensor([0.3, 0.3], dtype=torch.float64).repeat(Y)
    after = torch.tensor([-0.4, 0.8, 2.0], dtype=torch.float64)[SEQUENCES[:, 0]]
    values = torch.where(torch.arange(Y * P) % P == 0, first, after.repeat_interleave(P))
    return {"values": values, "final_values": torch.zeros_like(values)}


@pytest.mark.parametrize("name", KL_IN_REWARD)
def test_a_kl_in_the_reward_has_the_gradient_of_the_objective(name: str) -> None:
    for seed in range(3):
        policy, reference = Policy.drawn(seed), Policy.drawn(10 + seed)
        credit = by_token(policy, reference, **values_of(name))
        found = expected_ascent(made(name), policy, credit)
        wanted = policy.gradient(objective(policy, reference, BETA))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def ascended(reference: Policy) -> Tensor:
    """``[Y]`` logprobs of the policy that ascent by the algorithm's own gradient ends at."""
    policy = Policy(
        reference.first.detach().clone().requires_grad_(),
        reference.second.detach().clone().requires_grad_(),
    )
    spec = made("reinforce_plus_plus")
    optimizer = torch.optim.Adam([policy.first, policy.second], lr=0.1)
    for _ in range(300):
        ascent = expected_ascent(spec, policy, by_token(policy, reference))
        policy.first.grad = -ascent[:V]
        policy.second.grad = -ascent[V:].reshape(V, V)
        optimizer.step()
    return policy.sequences().detach()


def test_a_kl_in_the_reward_ends_at_the_tilted_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = Policy.drawn(3)
    tilted = reference.sequences().detach() + REWARD / BETA
    best = tilted - tilted.logsumexp(0)
    torch.testing.assert_close(ascended(reference), best, rtol=1e-3, atol=1e-3)

    # k3 in its place pulls next to nothing near the reference, and ends elsewhere
    monkeypatch.setattr(returns, "k1", token_terms.k3)
    astray = ascended(reference)
    assert float((astray.exp() * (astray - best)).sum()) > 0.1


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_a_right_critic_leaves_the_expected_gradient_alone(lam: float) -> None:
    """With any λ: the advantage of a right critic is unbiased after one step already."""
    policy, reference = Policy.drawn(5), Policy.drawn(6)
    probability = policy.sequences().detach().exp()
    first = (probability * REWARD).sum()
    after = (probability * REWARD).reshape(V, V).sum(1) / probability.reshape(V, V).sum(1)
    values = torch.stack([first.expand(Y), after[SEQUENCES[:, 0]]], 1).flatten()
    credit = by_token(
        policy, reference, values=values, final_values=torch.zeros_like(values)
    )
    spec = make_algorithm("ppo", {"gae": {"lam": lam}})
    found = expected_ascent(spec, policy, credit)
    wanted = policy.gradient(objective(policy, reference, 0.0))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def expected_over_groups(
    spec: AlgorithmSpec, policy: Policy, rewards: Callable[[Any, Any], Rewards]
) -> Tensor:
    """Expected ascent of a mini-batch of one group of two, over all pairs of sequences."""
    logprobs, weights = policy.sequences(), policy.sequences().detach().exp()
    total = torch.zeros((), dtype=torch.float64)
    counts = Counts(np.array([P, P]), np.arange(2), np.ones(2))
    weight = spec.reduction(counts)
    assert weight[0] == weight[1]
    for one, two in itertools.product(range(Y), repeat=2):
        pair = [one, two]
        given = rewards(REWARD[pair].numpy(), np.zeros(2, np.int64))
        credit = torch.from_numpy(spec.credit(given, spec.initial_state).trajectory)
        total = (
            total
            + weights[one] * weights[two] * (weight[0] * credit * logprobs[pair]).sum()
        )
    return policy.gradient(total)


@pytest.mark.parametrize(
    ("name", "settings", "scale"),
    [
        ("rloo", {}, 1 / P),  # a token's mean
        ("reinforce_plus_plus", {}, 1 / P),
        ("remax", {}, 1 / P),
        # the mean with the rollout itself in it: 1 - 1/2 of the gradient
        ("dr_grpo", {"constant_tokens": 4}, 0.5 / 4),
        ("grpo", {"scale_rewards": "none"}, 0.5 / P),
        ("reinforce_plus_plus", {"baseline": "group"}, 0.5 / P),
    ],
)
def test_a_baseline_leaves_the_expected_gradient_alone(
    name: str, settings: dict[str, Any], scale: float
) -> None:
    policy = Policy.drawn(7)
    greedy = float(REWARD[policy.sequences().argmax()])
    baseline = np.full(2, greedy) if name == "remax" else None
    found = expected_over_groups(
        make_algorithm(name, settings),
        policy,
        lambda reward, group: rewards_of(reward, group, baseline=baseline),
    )
    wanted = scale * policy.gradient((policy.sequences().exp() * REWARD).sum())
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def corrected(settings: dict[str, Any], policy: Policy, sampler: Policy) -> Tensor:
    """Expected ascent by sequences of the sampler, with an algorithm's correction."""
    spec = make_algorithm("grpo", {"rollout_correction": settings})
    logprobs, old = policy.tokens(), policy.tokens().detach()
    inputs = policy_inputs(
        logprobs,
        old_logprobs=old,
        rollout_logprobs=sampler.tokens().detach(),
        sample_row=ROWS,
        advantages=REWARD[ROWS],
    )
    assert spec.policy_loss is not None
    assert spec.correction is not None
    correction = spec.correction(inputs)
    assert correction is not None
    loss = spec.policy_loss(inputs).loss * correction.factor
    return policy.gradient(-(sampler.sequences().detach().exp()[ROWS] * loss).sum())


BOUNDS = {"cap": 1.4, "floor": 0.6}
FREE = {"cap": 1e9}


def token_ratio(policy: Policy, sampler: Policy) -> Tensor:
    return (policy.tokens() - sampler.tokens()).detach().reshape(Y, P)


def bounded(weight: Tensor, outside: str) -> Tensor:
    """What the docs say of [floor, cap]."""
    low, high = BOUNDS["floor"], BOUNDS["cap"]
    within = (weight >= low) & (weight <= high)
    return weight.clamp(low, high) if outside == "truncate" else weight * within


CORRECTIONS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "sequence": (
        {"level": "sequence", **BOUNDS},
        lambda d: bounded(d.sum(1, keepdim=True).exp(), "truncate"),
    ),
    "sequence mask": (
        {"level": "sequence", "outside": "mask", **BOUNDS},
        lambda d: bounded(d.sum(1, keepdim=True).exp(), "mask"),
    ),
    "token": ({"level": "token", **BOUNDS}, lambda d: bounded(d.exp(), "truncate")),
    "token mask": (
        {"level": "token", "outside": "mask", **BOUNDS},
        lambda d: bounded(d.exp(), "mask"),
    ),
    "geometric": (
        {"level": "geometric", **BOUNDS},
        lambda d: bounded(d.mean(1, keepdim=True).exp(), "truncate"),
    ),
    "reject tokens": (
        {"reject": "token", "reject_above": 0.1},
        lambda d: (d.exp() - d - 1 <= 0.1).double(),
    ),
    "reject sums": (
        {
            "reject": "sequence_sum",
            "reject_by": "k1",
            "reject_above": 0.3,
            "reject_below": -0.5,
        },
        lambda d: (
            (-d.sum(1, keepdim=True) <= 0.3) & (-d.sum(1, keepdim=True) >= -0.5)
        ).double(),
    ),
    "reject means": (
        {"reject": "sequence_mean", "reject_by": "k2", "reject_above": 0.2},
        lambda d: ((d.square() / 2).mean(1, keepdim=True) <= 0.2).double(),
    ),
    "sequence, reject the largest": (
        {"level": "sequence", **FREE, "reject": "sequence_max", "reject_above": 0.2},
        lambda d: (
            d.sum(1, keepdim=True).exp() * ((d.exp() - d - 1).amax(1, keepdim=True) <= 0.2)
        ),
    ),
}
"""Settings of a correction, and the weights ``[Y, P or 1]`` of tokens by their log ratios that the
docs state."""


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_bounded_correction_is_the_estimator_that_it_says(name: str) -> None:
    settings, weights = CORRECTIONS[name]
    policy, sampler = Policy.drawn(8, 0.4), Policy.drawn(9, 0.4)
    weight = weights(token_ratio(policy, sampler)).expand(Y, P)
    assert len(weight.flatten().unique()) > 1  # a bound bites somewhere, and not everywhere
    terms = weight * policy.tokens().reshape(Y, P) * REWARD[:, None]
    wanted = policy.gradient((sampler.sequences().detach().exp()[:, None] * terms).sum())
    torch.testing.assert_close(
        corrected(settings, policy, sampler), wanted, rtol=1e-9, atol=1e-12
    )


def test_whole_sequences_by_an_unbounded_weight_are_unbiased() -> None:
    policy, sampler = Policy.drawn(8, 0.4), Policy.drawn(9, 0.4)
    found = corrected({"level": "sequence", **FREE}, policy, sampler)
    wanted = policy.gradient((policy.sequences().exp() * REWARD).sum())
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_tokens_by_an_unbounded_weight_are_unbiased_at_the_states_of_the_sampler() -> None:
    """Each token is as if the policy had sampled it, where the sampler came to, and as if the
    sampler had gone on: exact for a single token, and where the rest is the sampler's."""
    policy, sampler = Policy.drawn(8, 0.4), Policy.drawn(9, 0.4)
    found = corrected({"level": "token", **FREE}, policy, sampler)
    own, others = (one.tokens().reshape(Y, P).exp() for one in (policy, sampler))
    others = others.detach()
    first = (own[:, 0] * others[:, 1] * REWARD).sum()
    second = (others[:, 0] * own[:, 1] * REWARD).sum()
    torch.testing.assert_close(
        found, policy.gradient(first + second), rtol=1e-9, atol=1e-12
    )

    # a policy that differs in the last token alone
    last = Policy(sampler.first, policy.second)
    found = corrected({"level": "token", **FREE}, last, sampler)[V:]
    wanted = last.gradient((last.sequences().exp() * REWARD).sum())[V:]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
