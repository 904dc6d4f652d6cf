"""KL estimators: of KL(policy, other) from tokens of the policy (http://joschu.net/blog/kl-approx.html).

Axis: N tokens.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

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
    return gradient - gradient.detach() + value.detach()
