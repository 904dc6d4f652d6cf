"""Group rewards: finished groups as an algorithm's functions on the driver see them, and what these
return, checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from agentrl.algorithms import AlgorithmSpec, Credit, FilterResult, GroupSummary, Rewards
from agentrl.errors import TrainingError
from agentrl.rollouts import make_batch, turns_of
from agentrl.types import Trajectory, TrajectoryGroup
from agentrl.types.arrays import F64, I64, Bools


def summary_of(group: TrajectoryGroup) -> GroupSummary:
    """A finished group before it enters a batch."""
    finished = group.finished
    return GroupSummary(
        group.group_index,
        rewards=_float64([one.reward for one in finished]),
        num_tokens=_num_tokens(finished),
        truncated=_truncated(finished),
        parts=_parts(finished),
    )


def comparable(algorithm: AlgorithmSpec, group: TrajectoryGroup) -> FilterResult:
    """Whether an algorithm can learn of a group, whose rollouts have a single agent each."""
    if not group.finished:
        return FilterResult(False, "too_few_finished")
    if algorithm.needs.baseline and group.baseline is None:
        return FilterResult(False, "no_baseline")
    result = algorithm.keep_group(summary_of(group))
    return (
        replace(result, keep=True)
        if result.credit_alone and _is_read(algorithm, group)
        else result
    )


def _is_read(algorithm: AlgorithmSpec, group: TrajectoryGroup) -> bool:
    """Whether an auxiliary loss reads any token of a group that weighs nothing."""
    if not algorithm.auxiliary:
        return False
    nothing = np.zeros(len(group.finished))
    credit = nothing.astype(np.float32)
    batch = make_batch([group], credit=credit, weight=nothing, trained=algorithm.trains)
    return any(one.coef and one.select(batch).any() for one in algorithm.auxiliary)


def weights_of(
    algorithm: AlgorithmSpec, groups: Sequence[TrajectoryGroup], rewards: Rewards
) -> F64 | None:
    """``[J]`` weights of the trajectories of a batch; None weighs them alike.

    Raises:
        TrainingError: what ``select`` returned is not one weight a trajectory.
    """
    weights = None
    if algorithm.select is not None:
        told = algorithm.told("select")
        weights = checked_weights(algorithm.select(rewards), rewards, told)
    if not algorithm.auxiliary:
        return weights
    credited = [not algorithm.keep_group(summary_of(one)).credit_alone for one in groups]
    own = np.repeat(_float64(credited), [len(group.finished) for group in groups])
    return own if weights is None else own * weights


def seat_groups(
    groups: Sequence[TrajectoryGroup], keep: Callable[[TrajectoryGroup], FilterResult]
) -> tuple[list[TrajectoryGroup], list[int]]:
    """The groups whose rollouts are compared: of each trained agent those in which it acted.

    Args:
        groups: in the order of the batch, each kept whole.
        keep: whether a group may be trained on.

    Returns:
        They, and for each the place of its whole group.
    """
    # Of several agents one that fits was enough to keep the group, so each is asked here.
    found = [
        (own, place)
        for place, group in enumerate(groups)
        for own in group.by_seat()
        if own is group or keep(own).keep
    ]
    return [own for own, _ in found], [place for _, place in found]


def keep_any_seat(
    group: TrajectoryGroup, keep: Callable[[TrajectoryGroup], FilterResult]
) -> FilterResult:
    """Whether a finished group may be trained on: as ``keep`` says of any of its agents."""
    results = [keep(own) for own in group.by_seat()]
    kept = next((result for result in results if result.keep), None)
    return kept or next(iter(results), FilterResult(False, "no_trained_agent"))


def rewards_of(groups: Sequence[TrajectoryGroup], seed: int) -> Rewards:
    """The finished trajectories of a batch.

    Args:
        groups: in the order of the batch.
        seed: for whatever the algorithm draws at random.
    """
    finished = [one for group in groups for one in group.finished]
    turns = turns_of(groups)
    return Rewards(
        reward=_float64([one.reward for one in finished]),
        group=np.repeat(np.arange(len(groups)), [len(group.finished) for group in groups]),
        baseline=_baselines(groups),
        num_tokens=_num_tokens(finished),
        truncated=_truncated(finished),
        turn_trajectory=np.repeat(
            np.arange(len(finished)), [len(one.turns) for one in finished]
        ),
        turn_reward=_float64([sum(turn.rewards.values()) for _, turn in turns]),
        # A state key is 16 hexadecimal digits, which 64 bits hold exactly.
        state_key=np.asarray(
            [int(turn.state_key or "0", 16) for _, turn in turns], np.uint64
        ),
        parts=_parts(finished),
        seed=seed,
    )


def _baselines(groups: Sequence[TrajectoryGroup]) -> F64 | None:
    """``[J]`` rewards of the groups' greedy rollouts; None where a group has none."""
    greedy = [group.baseline for group in groups]
    rewards = [one.reward for one in greedy if one is not None]
    if len(rewards) < len(groups):
        return None
    return np.repeat(_float64(rewards), [len(group.finished) for group in groups])


def checked_credit(credit: Credit, rewards: Rewards, whose: str) -> Credit:
    """``credit``, if it is one finite number a trajectory and turn.

    Args:
        credit: what the algorithm returned.
        rewards: what it was given.
        whose: the function's name for errors.

    Raises:
        TrainingError: it is not.
    """
    _check(
        f"{whose} for trajectories", credit.trajectory, rewards.reward.size, "trajectory"
    )
    _check(f"{whose} for turns", credit.turn, rewards.turn_trajectory.size, "turn")
    return credit


def checked_weights(weights: F64, rewards: Rewards, whose: str) -> F64:
    """What ``select`` returned, if it is one finite number a trajectory, none below 0.

    Args:
        weights: what it returned.
        rewards: what it was given.
        whose: its name for errors.

    Raises:
        TrainingError: it is not.
    """
    _check(whose, weights, rewards.reward.size, "trajectory")
    if (weights < 0).any():
        raise TrainingError(
            f"{whose} must return weights of at least 0, got {weights.min()}; return 0 for what "
            "is not trained"
        )
    return weights


def _check(what: str, values: F64, number: int, axis: str) -> None:
    if not isinstance(values, np.ndarray) or values.shape != (number,):
        found = getattr(values, "shape", type(values).__name__)
        raise TrainingError(
            f"{what} must return one number a {axis}, an array of shape ({number},), got {found}; "
            "return that"
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise TrainingError(
            f"{what} must return finite numbers, got {values[bad[0]]} for {axis} {bad[0]} of the "
            f"batch ({bad.size} in all); look at the rewards that it is made of"
        )


def _num_tokens(finished: Sequence[Trajectory]) -> I64:
    return np.asarray([one.num_policy_tokens for one in finished], dtype=np.int64)


def _truncated(finished: Sequence[Trajectory]) -> Bools:
    return np.asarray([one.status.kind == "truncated" for one in finished], dtype=np.bool_)


def _parts(finished: Sequence[Trajectory]) -> dict[str, F64]:
    names = dict.fromkeys(name for one in finished for name in one.rewards)
    return {
        name: _float64([one.rewards.get(name, np.nan) for one in finished])
        for name in names
    }


def _float64(values: Sequence[float | None]) -> F64:
    return np.asarray(values, dtype=np.float64)
