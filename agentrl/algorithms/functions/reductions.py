"""Reductions: sample weights of a mini-batch, from its counts (docs/training.md, Loss).

Axes: S samples. Tokens that a correction zeroes stay in the denominators: weights never depend on a
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from agentrl.algorithms.records import Counts
from agentrl.algorithms.settings.base import Reduction
from agentrl.types.arrays import F64


def token_mean(counts: Counts) -> F64:
    """Weighs every trained token equally: w = q / Σ q (arXiv:2503.14476, sec. 3.3), with q = 1
    unless trajectories are weighed.

    Returns:
        ``[S]`` weights; zeros if nothing is trained.
    """
    total = float((counts.weight * counts.tokens).sum())
    return counts.weight / total if total else np.zeros(counts.tokens.shape)


def trajectory_mean(counts: Counts) -> F64:
    """Weighs every trained trajectory equally: w = q / (Q · n_j) (arXiv:2402.03300).

    n_j counts the trained tokens of all samples of trajectory j, Q sums q over trained
    trajectories.

    Returns:
        ``[S]`` weights; 0 for samples of a trajectory without trained tokens.
    """
    own = np.bincount(counts.trajectory, weights=counts.tokens)[counts.trajectory]
    total = _trained_weight(counts)
    weights = np.zeros(own.shape)
    np.divide(counts.weight, total * own, out=weights, where=(own > 0) & (total > 0))
    return weights


def constant(counts: Counts, *, tokens: int) -> F64:
    """Divides sums by a constant length: w = q / (Q · C), without a length bias (arXiv:2503.20783).

    Args:
        counts: the mini-batch.
        tokens: C.

    Returns:
        ``[S]`` weights; zeros if nothing is trained.
    """
    total = _trained_weight(counts)
    return counts.weight / (total * tokens) if total else np.zeros(counts.tokens.shape)


def _trained_weight(counts: Counts) -> float:
    """The weights of trajectories with trained tokens, added up."""
    rows, first = np.unique(counts.trajectory, return_index=True)
    trained = np.bincount(counts.trajectory, weights=counts.tokens)[rows] > 0
    return float(counts.weight[first][trained].sum())


def pair_mean(counts: Counts) -> F64:
    """Weighs every pair equally: w = 1/C of C pairs, which are half the trajectories.

    Returns:
        ``[S]`` weights, equal for both samples of a pair.
    """
    return np.full(counts.trajectory.shape, 2.0 / max(1, np.unique(counts.trajectory).size))


def reduction_of(name: Reduction, constant_tokens: int | None) -> Callable[[Counts], F64]:
    """The function of a reduction's name."""
    if name == "constant":
        assert constant_tokens is not None, "settings are validated"
        return partial(constant, tokens=constant_tokens)
    return {"token_mean": token_mean, "trajectory_mean": trajectory_mean}[name]
