"""Corrections: factors of the loss for a behaviour policy that differs from the one trained.

With the ratio r = π_old / π_rollout of a token, a factor weighs what was sampled as if π_old had
sampled it. A sequence is a sample. A token that no engine sampled has the ratio 1. Factors are
detached; 0 leaves a token out, and its denominator stays (docs/training.md).

Axis: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import logging
from functools import partial

import torch
from torch import Tensor

from agentrl.algorithms.functions.token_terms import max_over, mean_over, stats_of, sum_over
from agentrl.algorithms.records import AlgorithmState, Correction, PolicyInputs
from agentrl.algorithms.settings.base import RolloutCorrection
from agentrl.types import Stats

logger = logging.getLogger(__name__)

_LIMIT = 20.0
"""Nats beyond which a ratio is no number to work with."""

CORRECTED = "rollout_corrected"
"""1 in the state of an algorithm whose level ``auto`` weighs tokens."""


def truncated_importance(inputs: PolicyInputs, *, cap: float) -> Correction:
    """Factors min(r, cap): truncated importance sampling, at bounded variance."""
    return rollout_correction(inputs, settings=RolloutCorrection(level="token", cap=cap))


def no_correction(inputs: PolicyInputs) -> Correction:
    """Factors of 1: the loss itself weighs by the sampler's logprobs."""
    return Correction(torch.ones_like(inputs.rollout_logprobs))


@torch.no_grad()
def rollout_correction(inputs: PolicyInputs, *, settings: RolloutCorrection) -> Correction:
    """Factors as ``algorithm.rollout_correction`` says: weights times rejections.

    Returns:
        The factors; level ``auto`` weighs by token where the algorithm's state says so. The
        statistics are ``mismatch/weight`` and ``mismatch/weight_sq``, from which
        ``mismatch/ess`` comes, ``mismatch/truncated_frac`` (weights moved to a bound, or masked
        for it) and ``mismatch/rejected_frac``.
    """
    ratio = log_ratio(inputs)
    weight = torch.ones_like(ratio)
    stats = {}
    chosen = "token" if inputs.state.get(CORRECTED) else "none"
    level = chosen if settings.level == "auto" else settings.level
    if level != "none":
        found = _level(ratio, inputs, level).exp()
        outside = (found > settings.cap) | (found < settings.floor)
        weight = found.clamp(settings.floor, settings.cap)
        if settings.outside == "mask":
            weight = torch.where(outside, 0.0, weight)
        stats["mismatch/truncated_frac"] = outside
    if settings.reject != "none":
        rejected = _rejected(ratio, inputs, settings)
        weight = torch.where(rejected, 0.0, weight)
        stats["mismatch/rejected_frac"] = rejected
    weight = torch.where(inputs.sampled, weight, 1.0)
    stats |= {"mismatch/weight": weight, "mismatch/weight_sq": weight.square()}
    return Correction(weight, stats_of(stats))


def chosen_correction(
    inputs: PolicyInputs, *, settings: RolloutCorrection
) -> Correction | None:
    """``rollout_correction`` where level ``auto`` corrects this step, or tokens may be rejected."""
    if not (inputs.state.get(CORRECTED) or settings.is_active):
        return None
    return rollout_correction(inputs, settings=settings)


def next_correction(
    state: AlgorithmState, stats: Stats, *, settings: RolloutCorrection
) -> AlgorithmState:
    """The state after a step: whether level ``auto`` corrects from the next one on.

    It never goes back, so that a mean about the bound does not switch the objective at every step;
    the weights of an engine that agrees are 1.

    Args:
        state: of the step.
        stats: of the step; one without tokens of the very version that it trains tells nothing.
        settings: with the bound.
    """
    found = stats.get("mismatch/engine/logp_abs")
    if (
        state.get(CORRECTED)
        or found is None
        or not found.count
        or found.mean <= settings.above
    ):
        return state
    logger.warning(
        "The sampler's logprobs are %.3g nats from the trainer's on average, more than "
        "rollout_correction.above=%g: level='auto' weighs tokens from the next step on",
        found.mean,
        settings.above,
        extra={"event": "rollout_correction", "mean": found.mean},
    )
    return {**state, CORRECTED: 1.0}


def log_ratio(inputs: PolicyInputs) -> Tensor:
    """``[N]`` log r; 0 for tokens that no engine sampled."""
    ratio = inputs.old_logprobs.detach() - inputs.rollout_logprobs
    return torch.where(inputs.sampled, ratio, 0.0)


def _level(ratio: Tensor, inputs: PolicyInputs, level: str) -> Tensor:
    """``[N]`` log ratios that are weighed, each held to the limit after its sum or mean."""
    if level != "token":
        over = sum_over if level == "sequence" else mean_over
        ratio = over(ratio, inputs.sample_row)
    return ratio.clamp(-_LIMIT, _LIMIT)


def _rejected(ratio: Tensor, inputs: PolicyInputs, settings: RolloutCorrection) -> Tensor:
    distance = {
        "k1": lambda d: -d,
        "k2": lambda d: d.square() / 2,
        "k3": lambda d: torch.expm1(d) - d,
    }[settings.reject_by](ratio.clamp(-_LIMIT, _LIMIT))
    over = {
        "token": None,
        "sequence_sum": partial(sum_over, rows=inputs.sample_row),
        "sequence_mean": partial(mean_over, rows=inputs.sample_row),
        "sequence_max": partial(max_over, rows=inputs.sample_row),
    }[settings.reject]
    distance = distance if over is None else over(distance)
    assert settings.reject_above is not None, "settings are validated"
    rejected = distance > settings.reject_above
    if settings.reject_below is not None:
        rejected = rejected | (distance < settings.reject_below)
    return rejected
