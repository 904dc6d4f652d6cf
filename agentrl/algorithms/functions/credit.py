"""Credit: computes each trajectory's advantage over its group, on the driver."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.algorithms.records import (
    AlgorithmState,
    Credit,
    FilterResult,
    GroupSummary,
    Rewards,
)
from agentrl.errors import RewardError
from agentrl.types.arrays import F64, I64


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
    sizes = np.bincount(np.unique(group_J, return_inverse=True)[1])
    if sizes.min(initial=2) < 2:
        group = np.unique(group_J)[np.argmin(sizes)]
        raise ValueError(
            f"group {group} has one finished trajectory and no baseline; keep_group drops such "
            "groups"
        )
    own = rewards_J.astype(np.float64)
    return compared(own, group_J, scale=scale_rewards == "std", eps=eps)


def keep_informative_group(
    group: GroupSummary, *, filter_zero_variance: bool = True, group_size_min: int = 2
) -> FilterResult:
    """Keep a group that has something to compare.

    Args:
        group: finished.
        filter_zero_variance: drop it where all rewards are equal.
        group_size_min: and where fewer rollouts have finished.

    Raises:
        RewardError: a reward is not finite.
    """
    finite_rewards(group.rewards, f"rewards of group {group.group_index}")
    if group.rewards.size < group_size_min:
        return FilterResult(False, "too_few_finished")
    if filter_zero_variance and float(group.rewards.max()) == float(group.rewards.min()):
        return FilterResult(False, "no_spread", credit_alone=True)
    return FilterResult(True)


def leave_one_out(rewards_J: F64, group_J: I64) -> F64:
    """Each reward less the mean of the others of its group (arXiv:2402.14740, eq. 8).

    Args:
        rewards_J: ``[J]`` rewards of finished trajectories.
        group_J: ``[J]`` equal within a group, in any order.

    Returns:
        ``[J]`` advantages.

    Raises:
        RewardError: a reward is not finite.
        ValueError: a group has a single trajectory.
    """
    centred = group_advantages(rewards_J, group_J, scale_rewards="none")
    places = np.unique(group_J, return_inverse=True)[1]
    own = np.bincount(places)[places]
    # With m of all n and m' of the others, r - m' = (r - m) · n / (n - 1).
    return centred * own / (own - 1)


def overlong_penalty(num_tokens_J: I64, *, max_tokens: int, buffer_tokens: int) -> F64:
    """Shares of the penalty for length: 0 up to ``max_tokens - buffer_tokens``, then growing
    linearly to 1 at ``max_tokens`` (arXiv:2503.14476, eq. 13).

    Returns:
        ``[J]`` from 0 to 1.
    """
    excess = num_tokens_J - (max_tokens - buffer_tokens)
    return np.clip(excess / buffer_tokens, 0.0, 1.0)


def rank_weights(rewards: Rewards, *, keep: Literal["best_worst", "best_random"]) -> F64:
    """Weights of trajectories by their rank in their group: the best of each, and of the others the
    worst or a random one (arXiv:2409.06957, sec. 3.2).

    Of equals one is drawn by ``rewards.seed``. What is left out would have been resampled away.

    Returns:
        ``[J]`` weights: 1 for what is kept, else 0; all of a group of two or fewer.
    """
    weights = np.zeros(rewards.reward.shape, dtype=np.float64)
    random = np.random.Generator(np.random.Philox(rewards.seed))
    for group in np.unique(rewards.group):
        rows = random.permutation(np.flatnonzero(rewards.group == group))
        order = rows[np.argsort(rewards.reward[rows], kind="stable")]
        others = order[:1] if keep == "best_worst" or order.size == 1 else order[:-1]
        weights[[order[-1], random.choice(others)]] = 1.0
    return weights


def turn_returns(rewards: Rewards, *, discount: float) -> F64:
    """``[U]`` discounted returns of turns: G_u = r_u + discount · G_(u+1), where the last turn of a
    trajectory also has what its total holds beside the rewards of steps.

    Raises:
        RewardError: a reward, or the reward of a turn, is not finite.
    """
    finite_rewards(rewards.reward, "rewards")
    finite_rewards(rewards.turn_reward, "rewards of turns")
    own = rewards.turn_reward.astype(np.float64).copy()
    steps = np.bincount(rewards.turn_trajectory, weights=own, minlength=rewards.reward.size)
    # No trajectory is -1, so that the last turn of all is one of them too.
    last = np.flatnonzero(np.diff(rewards.turn_trajectory, append=-1))
    own[last] += (rewards.reward - steps)[rewards.turn_trajectory[last]]
    returns = own
    for turn in reversed(range(own.size - 1)):
        if rewards.turn_trajectory[turn] == rewards.turn_trajectory[turn + 1]:
            returns[turn] += discount * returns[turn + 1]
    return returns


def compared(values: F64, rows: I64, *, scale: bool, eps: float) -> F64:
    """``values`` centred on the mean of those of equal ``rows``, and divided by their sample
    deviation where ``scale``; one alone gets 0.
    """
    found = np.zeros(values.shape, dtype=np.float64)
    places = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    for place in range(places.max(initial=-1) + 1):
        own = np.flatnonzero(places == place)
        # the mean of equal numbers may differ from them by rounding
        if own.size < 2 or values[own].max() == values[own].min():
            continue
        centred = values[own] - values[own].mean()
        found[own] = centred / (values[own].std(ddof=1) + eps) if scale else centred
    return found


def step_advantages(rewards: Rewards, *, discount: float, scale: bool, eps: float) -> F64:
    """``[U]`` advantages of turns among all turns of their group that began in the same state
    (arXiv:2505.10978, sec. 4.2); 0 for a state that was met once, and for turns without one.
    """
    returns = turn_returns(rewards, discount=discount)
    # Beside int64, numpy would make float64 of the keys, and one of keys that lie close.
    group = rewards.group[rewards.turn_trajectory].astype(np.uint64)
    found = compared(
        returns, np.stack([group, rewards.state_key], axis=1), scale=scale, eps=eps
    )
    return np.where(rewards.state_key == 0, 0.0, found)


def turn_advantages(rewards: Rewards, *, discount: float, scale: bool, eps: float) -> F64:
    """``[U]`` advantages of turns among the turns of the same number in their group; 0 for a turn
    that no other rollout reached.
    """
    returns = turn_returns(rewards, discount=discount)
    firsts = np.searchsorted(rewards.turn_trajectory, np.arange(rewards.reward.size))
    number = np.arange(returns.size) - firsts[rewards.turn_trajectory]
    rows = np.stack([rewards.group[rewards.turn_trajectory], number], axis=1)
    return compared(returns, rows, scale=scale, eps=eps)


def group_relative_credit(
    rewards: Rewards,
    state: AlgorithmState,
    *,
    scale_rewards: Literal["none", "std"],
    std_eps: float,
) -> Credit:
    """A trajectory's credit is its advantage over its group; turns get none of their own."""
    own = group_advantages(
        rewards.reward, rewards.group, scale_rewards=scale_rewards, eps=std_eps
    )
    return Credit(own, np.zeros(rewards.turn_reward.shape))


def leave_one_out_credit(rewards: Rewards, state: AlgorithmState) -> Credit:
    """A trajectory's credit is its advantage over the others of its group."""
    own = leave_one_out(rewards.reward, rewards.group)
    return Credit(own, np.zeros(rewards.turn_reward.shape))


def reward_credit(
    rewards: Rewards, state: AlgorithmState, *, baseline: Literal["none", "group"]
) -> Credit:
    """Turns get their own rewards, and a trajectory what its total holds beside them, less the mean
    of its group where ``baseline`` says so.
    """
    finite_rewards(rewards.reward, "rewards")
    steps = np.bincount(
        rewards.turn_trajectory, weights=rewards.turn_reward, minlength=rewards.reward.size
    )
    own = rewards.reward - steps
    if baseline == "group":
        places = np.unique(rewards.group, return_inverse=True)[1]
        means = np.bincount(places, weights=rewards.reward) / np.bincount(places)
        own = own - means[places]
    return Credit(own, rewards.turn_reward.astype(np.float64))


def greedy_baseline_credit(rewards: Rewards, state: AlgorithmState) -> Credit:
    """A trajectory's credit is its reward less that of its group's greedy rollout
    (arXiv:2310.10505, eq. 4).

    Raises:
        RewardError: a reward is not finite.
        ValueError: a group has no greedy rollout.
    """
    if rewards.baseline is None:
        raise ValueError(
            "rewards.baseline is missing: a group of the batch has no greedy rollout"
        )
    finite_rewards(rewards.reward, "rewards")
    finite_rewards(rewards.baseline, "rewards of greedy rollouts")
    return Credit(rewards.reward - rewards.baseline, np.zeros(rewards.turn_reward.shape))


def group_in_group_credit(
    rewards: Rewards,
    state: AlgorithmState,
    *,
    step_weight: float,
    discount: float,
    scale_rewards: Literal["none", "std"],
    std_eps: float,
) -> Credit:
    """A trajectory's advantage over its group, and each turn's among those that began in the same
    state (arXiv:2505.10978, eq. 8).
    """
    own = group_advantages(
        rewards.reward, rewards.group, scale_rewards=scale_rewards, eps=std_eps
    )
    steps = step_advantages(
        rewards, discount=discount, scale=scale_rewards == "std", eps=std_eps
    )
    return Credit(own, step_weight * steps)


def turn_level_credit(
    rewards: Rewards,
    state: AlgorithmState,
    *,
    discount: float,
    scale_rewards: Literal["none", "std"],
    std_eps: float,
) -> Credit:
    """Turns get their advantages among turns of the same number; trajectories none of their own."""
    turns = turn_advantages(
        rewards, discount=discount, scale=scale_rewards == "std", eps=std_eps
    )
    return Credit(np.zeros(rewards.reward.shape), turns)


def lambda_concern(rewards: Rewards, *, alpha: float) -> str:
    """What to tell where a λ by length (arXiv:2504.05118, eq. 9) is below 0.5 for most
    trajectories."""
    short = int(np.count_nonzero(alpha * rewards.num_tokens < 2))
    if 2 * short <= rewards.num_tokens.size:
        return ""
    return (
        f"algorithm.gae.length_alpha={alpha:g} gives a λ of max(0, 1 - 1 / (α · l)) below 0.5 to "
        f"{short} of {rewards.num_tokens.size} trajectories, whose l trained tokens are fewer than "
        f"{2 / alpha:g}, so that a token's advantage hardly knows the reward; raise it, or "
        "set it to null for gae.lam"
    )
