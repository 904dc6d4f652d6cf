"""KL estimators: of KL(policy, other) from tokens of the policy (http://joschu.net/blog/kl-approx.html).

Axis: N tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
