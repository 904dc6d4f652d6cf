"""Losses: of the policy and the critic for each token, and of pairs, unreduced and local.

Axes: N trained tokens and C pairs of a micro-batch, T packed tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.algorithms.functions.token_terms import (
    KL_COEF,
    KLEstimator,
    estimate,
    k3,
    mean_over,
    stat_of,
    stats_of,
)
from agentrl.algorithms.records import (
    Advantages,
    PairInputs,
    PairLoss,
    PolicyInputs,
    Term,
    TokenCredit,
    TokenLoss,
    ValueInputs,
)

_LIMIT = 20.0
"""Nats of a log ratio beyond which it counts as this and has no gradient. Such a token would
dominate a mean, and a ratio that overflows would make a gradient NaN.
"""

_ALMOST_ONE = 1.0 - 1e-6
"""Probabilities are read up to it, where what is left of 1 is a number in float32."""


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
    clip_dual: float | None = None,
) -> TokenLoss:
    """PPO's clipped surrogate with two bounds (arXiv:1707.06347, eq. 7).

    The loss is -min(r·A, clip(r, 1 - low, 1 + high)·A), with log r held to 20 nats.

    Args:
        inputs: ``[N]`` trained tokens with advantages.
        clip_low, clip_high: the bounds, which arXiv:2503.14476, sec. 3.1 separates.
        clip_dual: the surrogate is at least clip_dual·A if A < 0 (arXiv:1912.09729, eq. 5); None
            sets no bound.

    Returns:
        ``[N]`` losses. The statistics are ``policy/ratio``, ``policy/kl_old``,
        ``policy/kl_old_k1``, ``policy/clip_frac_low``, ``_high`` and ``_dual`` (shares of tokens
        whose gradient a bound removed); the columns ``ratio`` and ``clipped`` (0 by no bound, 1
        low, 2 high, 3 dual).

    Raises:
        ValueError: there are no advantages.
    """
    ratio = _ratio(inputs)
    return _clipped(
        inputs, ratio, clip_low=clip_low, clip_high=clip_high, clip_dual=clip_dual
    )


def sequence_policy_loss(
    inputs: PolicyInputs, *, clip_low: float, clip_high: float
) -> TokenLoss:
    """GSPO's: the ratio is the geometric mean of a sample's (arXiv:2507.18071, eq. 5 to 7, in the
    form by token of eq. 13 to 14).

    Returns:
        As ``clipped_policy_loss``. With equal advantages in a sample the mean of its losses is
        -min(s·A, clip(s)·A).
    """
    log_ratio = mean_over(
        (inputs.logprobs - inputs.old_logprobs).detach(), inputs.sample_row
    )
    # The value is the sample's mean, and the gradient that of the token's own logprob (eq. 14).
    log_ratio = log_ratio + inputs.logprobs - inputs.logprobs.detach()
    ratio = torch.exp(log_ratio.clamp(-_LIMIT, _LIMIT))
    return _clipped(inputs, ratio, clip_low=clip_low, clip_high=clip_high, clip_dual=None)


def _ratio(inputs: PolicyInputs) -> Tensor:
    """``[N]`` π / π_old, held to 20 nats."""
    return torch.exp((inputs.logprobs - inputs.old_logprobs).clamp(-_LIMIT, _LIMIT))


def _clipped(
    inputs: PolicyInputs,
    ratio: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None,
) -> TokenLoss:
    advantages = given(inputs.advantages, "advantages")
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    bounds = {
        "policy/clip_frac_low": (ratio < 1 - clip_low) & (advantages < 0),
        "policy/clip_frac_high": (ratio > 1 + clip_high) & (advantages > 0),
    }
    if clip_dual is not None:
        floor = clip_dual * advantages
        bounds["policy/clip_frac_dual"] = (advantages < 0) & (surrogate < floor)
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, floor), surrogate)
    return _with_ratio(-surrogate, inputs, ratio, bounds)


def weighted_policy_loss(
    inputs: PolicyInputs, *, ratio_floor: float, ratio_cap: float
) -> TokenLoss:
    """CISPO's: -clip(r, floor, cap)·A·log π with the ratio detached, so that no token loses its
    gradient (arXiv:2506.13585, eq. 4 and 5).

    Returns:
        ``[N]`` losses; statistics and columns as ``clipped_policy_loss``, where a bound that bites
        weighs a token otherwise and removes nothing.
    """
    advantages = given(inputs.advantages, "advantages")
    ratio = _ratio(inputs)
    weight = ratio.detach().clamp(ratio_floor, ratio_cap)
    bounds = {
        "policy/clip_frac_low": ratio < ratio_floor,
        "policy/clip_frac_high": ratio > ratio_cap,
    }
    return _with_ratio(-weight * advantages * inputs.logprobs, inputs, ratio, bounds)


def gated_policy_loss(
    inputs: PolicyInputs, *, tau_positive: float, tau_negative: float
) -> TokenLoss:
    """SAPO's: -4/τ·σ(τ·(r - 1))·A, with a τ for each sign of the advantage (arXiv:2511.20347,
    eq. 5 and 6).
    """
    advantages = given(inputs.advantages, "advantages")
    ratio = _ratio(inputs)
    positive = advantages > 0
    tau = torch.where(positive, tau_positive, tau_negative).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1)) * (4 / tau)
    return _with_ratio(-gate * advantages, inputs, ratio, {})


def divergence_policy_loss(
    inputs: PolicyInputs,
    *,
    divergence: Literal["tv", "kl"],
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> TokenLoss:
    """DPPO's: -min(r, cap)·A·log π with r = π / π_rollout detached, 0 where the policy is too far
    from the sampler and would go further (arXiv:2602.04879, sec. 4 and 5.4).

    Args:
        inputs: ``[N]`` trained tokens with advantages.
        divergence: of the choice between this token and any other: ``tv`` |π - μ|, ``kl``
            μ·log(μ/π) + (1 - μ)·log((1 - μ)/(1 - π)).
        clip_low, clip_high: largest divergence of a token that becomes rarer, or more frequent.
        ratio_cap: of the ratio.
    """
    advantages = given(inputs.advantages, "advantages")
    sampler = inputs.rollout_logprobs
    current = inputs.logprobs.detach()
    probability, sampled = current.exp(), sampler.exp()
    if divergence == "tv":
        distance = (probability - sampled).abs()
    else:
        rest = torch.log1p(-sampled.clamp(max=_ALMOST_ONE))
        own_rest = torch.log1p(-probability.clamp(max=_ALMOST_ONE))
        distance = sampled * (sampler - current) + (1 - sampled) * (rest - own_rest)
    bounds = {
        "policy/clip_frac_low": (advantages < 0)
        & (probability < sampled)
        & (distance > clip_low),
        "policy/clip_frac_high": (advantages > 0)
        & (probability > sampled)
        & (distance > clip_high),
    }
    ratio = torch.exp((current - sampler).clamp(-_LIMIT, _LIMIT))
    kept = ~(bounds["policy/clip_frac_low"] | bounds["policy/clip_frac_high"])
    weight = ratio.clamp(max=ratio_cap) * kept
    return _with_ratio(-weight * advantages * inputs.logprobs, inputs, ratio, bounds)


def _with_ratio(
    loss: Tensor, inputs: PolicyInputs, ratio: Tensor, bounds: Mapping[str, Tensor]
) -> TokenLoss:
    """A loss with what it says of the ratio, and of the bounds that bite, in their order."""
    with torch.no_grad():
        old = inputs.old_logprobs
        stats = {
            "policy/ratio": ratio,
            "policy/kl_old": k3(old, inputs.logprobs),
            "policy/kl_old_k1": (old - inputs.logprobs).clamp(-_LIMIT, _LIMIT),
            **bounds,
        }
        clipped_by = torch.zeros_like(ratio)
        for number, bites in enumerate(bounds.values(), start=1):
            clipped_by = torch.where(bites, float(number), clipped_by)
    return TokenLoss(
        loss,
        stats_of(stats),
        columns={"ratio": ratio.detach(), "clipped": clipped_by},
    )


def with_terms(
    inputs: PolicyInputs,
    *,
    loss: Callable[[PolicyInputs], TokenLoss],
    kl_coef: float = 0.0,
    kl_estimator: KLEstimator = "k3",
    kl_cap: float | None = None,
    kl_weighted: bool = False,
    entropy_coef: float = 0.0,
) -> TokenLoss:
    """A policy's loss with a KL to the reference and a bonus for entropy, which no correction
    multiplies.

    Args:
        inputs: ``[N]`` trained tokens.
        loss: the policy's.
        kl_coef: weight of the KL estimate (arXiv:2402.03300, eq. 4); the algorithm's state has the
            current one where it is adapted.
        kl_estimator, kl_cap: see ``kl.estimate``.
        kl_weighted: multiply each estimate by the ratio π / π_old, with its gradient.
        entropy_coef: weight of the entropy.

    Returns:
        The loss, with the terms ``kl`` and ``entropy`` and the statistics ``policy/kl_ref``, where
        there is a reference, and ``policy/kl_coef``, where it is adapted.

    Raises:
        ValueError: the reference's logprobs are missing.
    """
    found = loss(inputs)
    stats, terms = dict(found.stats), dict(found.terms)
    if KL_COEF in inputs.state:
        stats["policy/kl_coef"] = stat_of(
            torch.full_like(inputs.logprobs, inputs.state[KL_COEF])
        )
    # A KL in the reward is told here too.
    if kl_coef > 0 or inputs.ref_logprobs is not None:
        reference = given(inputs.ref_logprobs, "ref_logprobs")
        kl = estimate(inputs.logprobs, reference, kl_estimator, kl_cap)
        stats["policy/kl_ref"] = stat_of(kl)
    if kl_coef > 0:
        if kl_weighted:
            kl = kl * torch.exp((inputs.logprobs - inputs.old_logprobs).clamp(max=_LIMIT))
        terms["kl"] = Term(kl, inputs.state.get(KL_COEF, kl_coef))
    if entropy_coef > 0:
        terms["entropy"] = Term(inputs.entropy, -entropy_coef)
    return replace(found, stats=stats, terms=terms)


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
    return PairLoss(loss, stats_of(stats))


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


def clipped_value_loss(inputs: ValueInputs, *, clip: float | None) -> TokenLoss:
    """max((V - R)², (V_clip - R)²) / 2, where V_clip is at most ``clip`` away from the value before
    the batch's first update.

    Args:
        inputs: ``[N]``.
        clip: None takes (V - R)² / 2.

    Returns:
        ``[N]`` losses. The statistics are ``value``, ``return``, ``clip_frac`` (shares of tokens
        whose gradient the bound removed), and what the explained variance before the update comes
        from: ``return_sq``, ``error`` and ``error_sq``.
    """
    values, old, returns = inputs.values, inputs.old_values, inputs.returns
    loss = (values - returns).square()
    bites = torch.zeros_like(values, dtype=torch.bool)
    if clip is not None:
        bounded = old + (values - old).clamp(-clip, clip)
        clipped = (bounded - returns).square()
        bites = clipped > loss
        loss = torch.maximum(loss, clipped)
    error = returns - old
    stats = {
        "value": values,
        "return": returns,
        "return_sq": returns.square(),
        "error": error,
        "error_sq": error.square(),
        "clip_frac": bites,
    }
    return TokenLoss(loss / 2, stats_of(stats))
