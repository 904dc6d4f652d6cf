"""Reductions: sample weights of a mini-batch, from its counts (docs/training.md, Loss).

Axes: S samples. Tokens that a correction zeroes stay in the denominators: weights never depend on a
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.algorithm_spec import Counts
from agentrl.algorithms.settings import Reduction

F64 = npt.NDArray[np.float64]


def token_mean(counts: Counts) -> F64:
    """Weighs every trained token equally: w = 1/N (arXiv:2503.14476, sec. 3.3).

    Returns:
        ``[S]`` weights; zeros if nothing is trained.
    """
    total = int(counts.tokens.sum())
    return np.full(counts.tokens.shape, 1.0 / total if total else 0.0)


def trajectory_mean(counts: Counts) -> F64:
    """Weighs every trained trajectory equally: w = 1/(J·n_j) (arXiv:2402.03300).

    n_j counts the trained tokens of all samples of trajectory j.

    Returns:
        ``[S]`` weights; 0 for samples of a trajectory without trained tokens.
    """
    per_trajectory = np.bincount(counts.trajectory, weights=counts.tokens)
    own = per_trajectory[counts.trajectory]
    trained = np.count_nonzero(per_trajectory)
    weights = np.zeros(own.shape)
    np.divide(1.0, trained * own, out=weights, where=own > 0)
    return weights


def constant(counts: Counts, *, tokens: int) -> F64:
    """Divides sums by a constant length: w = 1/(J·C), without a length bias (arXiv:2503.20783).

    Args:
        counts: the mini-batch.
        tokens: C.

    Returns:
        ``[S]`` weights; zeros if nothing is trained.
    """
    trained = np.unique(counts.trajectory[counts.tokens > 0]).size
    return np.full(counts.tokens.shape, 1.0 / (trained * tokens) if trained else 0.0)


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
