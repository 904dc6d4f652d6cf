"""Losses: policy losses and estimators for each token and losses for each pair, unreduced and local
to a rank.

Axes: N trained tokens and C pairs of a micro-batch, T packed tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.algorithms.algorithm_spec import (
    Advantages,
    PairInputs,
    PairLoss,
    PolicyInputs,
    TokenCredit,
    TokenLoss,
    TokenStat,
)

_K1_LIMIT = 20.0
"""Nats of one token beyond which that token alone would dominate a mean."""


def broadcast_to_tokens(credit: TokenCredit) -> Advantages:
    """Gives every trained token the credit of its trajectory and its turn, and others exact
    zeros.
    """
    total = credit.trajectory + credit.turn
    return Advantages(torch.where(credit.mask != 0, total, torch.zeros_like(total)))


def k3(logprobs: Tensor, other: Tensor) -> Tensor:
    """``[N]`` estimates of KL(policy, other) from tokens of the policy: exp(d) - d - 1, d = other -
    policy.

    Unbiased and never negative (http://joschu.net/blog/kl-approx.html).
    """
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


def clipped_policy_loss(
    inputs: PolicyInputs,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
    kl_coef: float,
    kl_cap: float | None,
    use_rollout_logprobs: bool,
) -> TokenLoss:
    """PPO's clipped surrogate with two bounds (arXiv:1707.06347, eq. 7).

    The loss is -min(r·A, clip(r, 1 - low, 1 + high)·A).

    Args:
        inputs: ``[N]`` trained tokens with advantages.
        clip_low, clip_high: the bounds, which arXiv:2503.14476, sec. 3.1 separates.
        clip_dual: the surrogate is at least clip_dual·A if A < 0 (arXiv:1912.09729, eq. 5); None
            sets no bound.
        kl_coef: the coefficient of k3 against the reference, in the loss (arXiv:2402.03300, eq. 4).
        kl_cap: the cap of k3.
        use_rollout_logprobs: use the sampler's own logprobs as π_old.

    Returns:
        ``[N]`` losses. The statistics are ``policy/ratio``, ``policy/kl_old``,
        ``policy/kl_old_k1``, ``policy/clip_frac_low``, ``_high`` and ``_dual`` (shares of tokens
        whose gradient a bound removed) and ``policy/kl_ref``; the columns ``ratio`` and
        ``clipped`` (0 by no bound, 1 low, 2 high, 3 dual).

    Raises:
        ValueError: a required column is missing.
    """
    old = _given(
        inputs.rollout_logprobs if use_rollout_logprobs else inputs.old_logprobs, "old_logprobs"
    )
    advantages = _given(inputs.advantages, "advantages")
    ratio = torch.exp(inputs.logprobs - old)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    with torch.no_grad():
        stats = {
            "policy/ratio": ratio,
            "policy/kl_old": k3(old, inputs.logprobs),
            "policy/kl_old_k1": (old - inputs.logprobs).clamp(-_K1_LIMIT, _K1_LIMIT),
            "policy/clip_frac_low": (ratio < 1 - clip_low) & (advantages < 0),
            "policy/clip_frac_high": (ratio > 1 + clip_high) & (advantages > 0),
        }
    bounds = ["policy/clip_frac_low", "policy/clip_frac_high"]
    if clip_dual is not None:
        floor = clip_dual * advantages
        stats["policy/clip_frac_dual"] = (advantages < 0) & (surrogate < floor)
        bounds.append("policy/clip_frac_dual")
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, floor), surrogate)
    kl = None
    if kl_coef > 0:
        kl = capped_k3(inputs.logprobs, _given(inputs.ref_logprobs, "ref_logprobs"), kl_cap)
        stats["policy/kl_ref"] = kl.detach()
    clipped_by = torch.zeros_like(ratio)
    for number, bound in enumerate(bounds, start=1):
        clipped_by = torch.where(stats[bound], float(number), clipped_by)
    return TokenLoss(
        -surrogate,
        {name: _stat(values) for name, values in stats.items()},
        kl,
        kl_coef,
        {"ratio": ratio.detach(), "clipped": clipped_by.detach()},
    )


def imitation_loss(inputs: PolicyInputs) -> TokenLoss:
    """Minus the logprob of each token; statistic ``policy/nll``."""
    loss = -inputs.logprobs
    return TokenLoss(loss, {"policy/nll": _stat(loss)})


def bradley_terry_loss(inputs: PairInputs, *, centring: float) -> PairLoss:
    """-log sigmoid(r_chosen - r_rejected - margin) (arXiv:1706.03741, sec. 2.2.3; arXiv:2203.02155,
    eq. 1).

    Args:
        inputs: ``[C]`` pairs; the margin is that of arXiv:2307.09288, eq. 2.
        centring: adds centring · (r_chosen + r_rejected)^2 (arXiv:2312.09244, sec. 2).

    Returns:
        ``[C]`` losses. The statistics are ``reward_model/accuracy`` (the share of pairs whose
        better trajectory has the higher score; a tie counts half), ``reward_model/margin``
        (r_chosen - r_rejected) and ``reward_model/score`` (the mean of both).
    """
    difference = inputs.chosen - inputs.rejected
    loss = -logsigmoid(difference - inputs.margin)
    total = inputs.chosen + inputs.rejected
    if centring > 0:
        loss = loss + centring * total.square()
    right = (difference.detach() > 0).double() + 0.5 * (difference.detach() == 0)
    stats = {
        "reward_model/accuracy": right,
        "reward_model/margin": difference,
        "reward_model/score": total / 2,
    }
    return PairLoss(loss, {name: _stat(values) for name, values in stats.items()})


def truncated_importance(inputs: PolicyInputs, *, cap: float) -> Tensor:
    """``[N]`` detached factors min(π_old / π_rollout, cap); 1 for tokens that no engine sampled.

    Truncated importance sampling corrects for a sampler whose probabilities differ from the
    trainer's, at bounded variance.
    """
    old = _given(inputs.old_logprobs, "old_logprobs").detach()
    factor = torch.exp(old - inputs.rollout_logprobs).clamp(max=cap)
    return torch.where(inputs.sampled, factor, torch.ones_like(factor))


def _stat(values: Tensor) -> TokenStat:
    return TokenStat(values.detach().sum(dtype=torch.float64), values.numel())


def _given(column: Tensor | None, name: str) -> Tensor:
    if column is None:
        raise ValueError(
            f"batch.{name} is missing: join the pass that computes it before the update"
        )
    return column
