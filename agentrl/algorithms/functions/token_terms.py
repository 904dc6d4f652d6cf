"""Token terms: estimates of the KL divergence and its weight, sums over a sequence, and statistics.

- KL(policy, other) is estimated from tokens of the policy (http://joschu.net/blog/kl-approx.html);
  its weight moves towards a target (arXiv:1909.08593, sec. 2.2).
- Sequences are the one way in which a loss or a correction looks beyond a token. What a sequence
  is, the rows say: a sample, a turn or a trajectory (``PolicyInputs``).

Axis: N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from agentrl.algorithms.records import AlgorithmState, TokenStat
from agentrl.types import Stats

KLEstimator = Literal["k1", "k2", "k3", "k1+", "k3+"]


def k1(logprobs: Tensor, other: Tensor) -> Tensor:
    """``[N]`` estimates policy - other: unbiased, of either sign."""
    return logprobs - other


def k2(logprobs: Tensor, other: Tensor) -> Tensor:
    """``[N]`` estimates (policy - other)² / 2, whose expected gradient is that of the KL."""
    return (logprobs - other).square() / 2


def k3(logprobs: Tensor, other: Tensor) -> Tensor:
    """``[N]`` estimates exp(d) - d - 1, d = other - policy: unbiased and never negative."""
    difference = other - logprobs
    return torch.expm1(difference) - difference


def capped_k3(logprobs: Tensor, other: Tensor, cap: float | None) -> Tensor:
    """``k3``, at most ``cap``; a capped token has no gradient. None sets no bound.

    k3 and its gradient grow as exp(d). One token that the policy makes much rarer than the
    reference could outweigh a batch.
    """
    if cap is None:
        return k3(logprobs, other)
    # exp(d) - d - 1 is above any cap at d = log(cap + 1) + 1; an overflow beyond it would make the
    # gradient NaN
    difference = (other - logprobs).clamp(max=math.log1p(cap) + 1.0)
    return (torch.expm1(difference) - difference).clamp(max=cap)


def estimate(
    logprobs: Tensor, other: Tensor, estimator: KLEstimator, cap: float | None = None
) -> Tensor:
    """``[N]`` estimates of an estimator's name.

    Args:
        logprobs: ``[N]`` of the policy, which sampled the tokens.
        other: ``[N]`` of the other.
        estimator: a ``+`` keeps its value and takes the gradient of k2.
        cap: of k3.
    """
    name = estimator.removesuffix("+")
    value = k1(logprobs, other) if name == "k1" else k2(logprobs, other)
    if name == "k3":
        value = capped_k3(logprobs, other, cap)
    if not estimator.endswith("+"):
        return value
    gradient = k2(logprobs, other)
    # The difference is 0 and has k2's gradient; the value is that of the name.
    return gradient - gradient.detach() + value.detach()


KL_COEF = "kl_coef"
"""The current weight, in an algorithm's state."""


def adapted_kl(
    state: AlgorithmState, stats: Stats, *, target: float, horizon: int
) -> AlgorithmState:
    """The state with its weight times 1 + clip(KL / target - 1, -0.2, 0.2) / horizon.

    Args:
        state: with ``KL_COEF``.
        stats: of the step; one without an update leaves the weight.
        target: nats.
        horizon: steps.
    """
    kl = stats.get("policy/kl_ref")
    if kl is None or not kl.count:
        return state
    error = min(max(kl.mean / target - 1.0, -0.2), 0.2)
    return {**state, KL_COEF: state[KL_COEF] * (1.0 + error / horizon)}


def sum_over(values: Tensor, rows: Tensor) -> Tensor:
    """``[N]`` sums of ``values`` over the tokens of equal ``rows``, with gradient.

    Args:
        values: ``[N]``.
        rows: ``[N]`` int64, in any order.
    """
    places, number = _places(rows)
    return values.new_zeros(number).index_add(0, places, values)[places]


def mean_over(values: Tensor, rows: Tensor) -> Tensor:
    """``[N]`` means of ``values`` over the tokens of equal ``rows``, with gradient."""
    return sum_over(values, rows) / sum_over(torch.ones_like(values), rows)


def max_over(values: Tensor, rows: Tensor) -> Tensor:
    """``[N]`` largest of ``values`` among the tokens of equal ``rows``, without gradient."""
    places, number = _places(rows)
    found = values.new_full((number,), -torch.inf)
    return found.scatter_reduce(0, places, values.detach(), "amax")[places]


def _places(rows: Tensor) -> tuple[Tensor, int]:
    """The place of each token's sequence, in the order of ``rows``, and a bound on their number; a
    GPU would have to be asked for the number itself."""
    order = rows.argsort(stable=True)
    ordered = rows[order]
    is_first = torch.zeros_like(rows)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(rows).scatter_(0, order, is_first.cumsum(0)), rows.numel()


def stats_of(values: Mapping[str, Tensor]) -> dict[str, TokenStat]:
    """``stat_of`` each, by name."""
    return {name: stat_of(one) for name, one in values.items()}


def stat_of(values: Tensor) -> TokenStat:
    """The sum of ``values`` in float64, detached, and their number."""
    return TokenStat(values.detach().sum(dtype=torch.float64), values.numel())
