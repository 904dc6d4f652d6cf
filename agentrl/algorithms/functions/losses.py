"""Losses: policy losses and estimators for each token and losses for each pair, unreduced and local
to a rank.

Axes: N trained tokens and C pairs of a micro-batch, T packed tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.algorithms.functions.kl import capped_k3, k3
from agentrl.algorithms.functions.token_stats import stat_of
from agentrl.algorithms.records import (
    Advantages,
    PairInputs,
    PairLoss,
    PolicyInputs,
    Term,
    TokenCredit,
    TokenLoss,
)

_K1_LIMIT = 20.0
"""Nats of one token beyond which that token alone would dominate a mean."""


def broadcast_to_tokens(credit: TokenCredit) -> Advantages:
    """Gives every trained token the credit of its trajectory and its turn, and others exact
    zeros.
    """
    total = credit.trajectory + credit.turn
    return Advantages(torch.where(credit.mask != 0, total, torch.zeros_like(total)))


def clipped_policy_loss(
    inputs: PolicyInputs,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
    kl_coef: float,
    kl_cap: float | None,
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

    Returns:
        ``[N]`` losses. The statistics are ``policy/ratio``, ``policy/kl_old``,
        ``policy/kl_old_k1``, ``policy/clip_frac_low``, ``_high`` and ``_dual`` (shares of tokens
        whose gradient a bound removed) and ``policy/kl_ref``; the columns ``ratio`` and
        ``clipped`` (0 by no bound, 1 low, 2 high, 3 dual).

    Raises:
        ValueError: a required column is missing.
    """
    old = inputs.old_logprobs
    advantages = given(inputs.advantages, "advantages")
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
    terms = {}
    if kl_coef > 0:
        kl = capped_k3(inputs.logprobs, given(inputs.ref_logprobs, "ref_logprobs"), kl_cap)
        stats["policy/kl_ref"] = kl.detach()
        terms["kl"] = Term(kl, kl_coef)
    clipped_by = torch.zeros_like(ratio)
    for number, bound in enumerate(bounds, start=1):
        clipped_by = torch.where(stats[bound], float(number), clipped_by)
    return TokenLoss(
        -surrogate,
        {name: stat_of(values) for name, values in stats.items()},
        terms,
        {"ratio": ratio.detach(), "clipped": clipped_by.detach()},
    )


def imitation_loss(inputs: PolicyInputs) -> TokenLoss:
    """Minus the logprob of each token; statistic ``policy/nll``."""
    loss = -inputs.logprobs
    return TokenLoss(loss, {"policy/nll": stat_of(loss)})


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
    return PairLoss(loss, {name: stat_of(values) for name, values in stats.items()})


def given(column: Tensor | None, name: str) -> Tensor:
    """A column that a pass before the update joined.

    Raises:
        ValueError: none did.
    """
    if column is None:
        raise ValueError(
            f"batch.{name} is missing: join the pass that computes it before the update"
        )
    return column
