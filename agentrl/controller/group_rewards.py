"""Group rewards: finished groups as an algorithm's functions on the driver see them, and what these
return, checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.algorithms import Credit, GroupSummary, Rewards
from agentrl.errors import TrainingError
from agentrl.rollouts import turns_of
from agentrl.types import Trajectory, TrajectoryGroup

F64 = npt.NDArray[np.float64]


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
        turn_trajectory=np.repeat(np.arange(len(finished)), [len(one.turns) for one in finished]),
        turn_reward=_float64([sum(turn.rewards.values()) for _, turn in turns]),
        state_key=np.asarray([int(turn.state_key or "0", 16) for _, turn in turns], np.uint64),
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


def checked_credit(credit: Credit, rewards: Rewards) -> Credit:
    """``credit``, if it is one finite number a trajectory and turn.

    Raises:
        TrainingError: it is not.
    """
    _check("credit(...).trajectory", credit.trajectory, rewards.reward.size, "trajectory")
    _check("credit(...).turn", credit.turn, rewards.turn_trajectory.size, "turn")
    return credit


def checked_weights(weights: F64, rewards: Rewards) -> F64:
    """What ``select`` returned, if it is one finite number a trajectory, none below 0.

    Raises:
        TrainingError: it is not.
    """
    _check("select(...)", weights, rewards.reward.size, "trajectory")
    if (weights < 0).any():
        raise TrainingError(
            f"the algorithm's select(...) must return weights of at least 0, got {weights.min()}"
        )
    return weights


def _check(what: str, values: F64, number: int, axis: str) -> None:
    if values.shape != (number,):
        raise TrainingError(
            f"the algorithm's {what} must have one number a {axis}, shape ({number},), got "
            f"{values.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise TrainingError(
            f"the algorithm's {what} must be finite, got {values[bad[0]]} for {axis} {bad[0]} of "
            f"the batch ({bad.size} in all); look at the rewards that it is made of"
        )


def _num_tokens(finished: Sequence[Trajectory]) -> npt.NDArray[np.int64]:
    return np.asarray([one.num_policy_tokens for one in finished], dtype=np.int64)


def _truncated(finished: Sequence[Trajectory]) -> npt.NDArray[np.bool_]:
    return np.asarray([one.status.kind == "truncated" for one in finished], dtype=np.bool_)


def _parts(finished: Sequence[Trajectory]) -> dict[str, F64]:
    names = dict.fromkeys(name for one in finished for name in one.rewards)
    return {name: _float64([one.rewards.get(name, np.nan) for one in finished]) for name in names}


def _float64(values: Sequence[float | None]) -> F64:
    return np.asarray(values, dtype=np.float64)
