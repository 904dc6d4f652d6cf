"""Credit: computes each trajectory's advantage over its group, on the driver."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.algorithms.records import F64, I64, FilterResult, GroupSummary
from agentrl.errors import RewardError


def finite_rewards(rewards: F64, what: str) -> F64:
    """Returns ``rewards`` if all are finite.

    Args:
        rewards: ``[n]``.
        what: their name, for the error.

    Raises:
        RewardError: a reward is NaN or infinite.
    """
    bad = np.flatnonzero(~np.isfinite(rewards))
    if bad.size:
        raise RewardError(
            f"{what} must be finite, got {rewards[bad[0]]} at position {bad[0]} ({bad.size} in "
            f"all); fix the reward function: a trajectory that can't be scored must fail instead"
        )
    return rewards


def group_advantages(
    rewards_J: F64,
    group_J: I64,
    *,
    scale_rewards: Literal["none", "std"] = "std",
    eps: float = 1e-4,
) -> F64:
    """Centres every reward on the mean of its own group.

    The mean of the finished rollouts is GRPO's baseline (arXiv:2402.03300, sec. 4.1).
    ``scale_rewards="std"`` also divides by the group's sample standard deviation (n - 1), as in
    that paper. ``"none"`` omits it, because it favours prompts that are nearly always or nearly
    never solved (arXiv:2503.20783).

    Args:
        rewards_J: ``[J]`` rewards of finished trajectories; failed ones are absent.
        group_J: ``[J]`` equal within a group, in any order.
        scale_rewards: ``"none"`` keeps reward units; ``"std"`` makes the result unitless.
        eps: added to the standard deviation; unused for ``"none"``.

    Returns:
        ``[J]`` advantages; a group of equal rewards gets exact zeros.

    Raises:
        RewardError: a reward is not finite.
        ValueError: the shapes differ, or a group has a single trajectory and so no baseline.
    """
    if rewards_J.shape != group_J.shape or rewards_J.ndim != 1:
        raise ValueError(
            f"rewards and groups must be one-dimensional and alike, got {rewards_J.shape}, "
            f"{group_J.shape}"
        )
    finite_rewards(rewards_J, "rewards")
    advantages_J = np.zeros(rewards_J.shape, dtype=np.float64)
    for group in np.unique(group_J):
        rows = np.flatnonzero(group_J == group)
        if rows.size < 2:
            raise ValueError(
                f"group {group} has one finished trajectory and no baseline; keep_group drops "
                f"such groups"
            )
        own = rewards_J[rows].astype(np.float64)
        if own.max() == own.min():  # the mean of equal numbers may differ from them by rounding
            continue
        centred = own - own.mean()
        advantages_J[rows] = (
            centred / (own.std(ddof=1) + eps) if scale_rewards == "std" else centred
        )
    return advantages_J


def keep_informative_group(
    group: GroupSummary, *, filter_zero_variance: bool = True
) -> FilterResult:
    """Keep a group that has something to compare.

    Raises:
        RewardError: a reward is not finite.
    """
    finite_rewards(group.rewards, f"rewards of group {group.group_index}")
    if group.rewards.size < 2:
        return FilterResult(False, "too_few_finished")
    if filter_zero_variance and float(group.rewards.max()) == float(group.rewards.min()):
        return FilterResult(False, "no_spread")
    return FilterResult(True)
