"""Group scores: the parts of a rubric that score all episodes of a group together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.envs import EpisodeView, Rubric
from agentrl.errors import RewardError
from agentrl.types import Status, Trajectory
from agentrl.types.user_code.place import told_of


async def with_group_scores(
    rubric: Rubric, trajectories: Sequence[Trajectory]
) -> tuple[Trajectory, ...]:
    """The rollouts of a group, the finished ones with the parts that score groups; where such a
    part failed, all finished ones have failed at the boundary ``reward``.
    """
    finished = [t for t in trajectories if t.status.finished and t.reward is not None]
    if not finished or not rubric.group_parts:
        return tuple(trajectories)
    try:
        several = next((one for one in finished if one.seats), None)
        if several is not None:
            raise RewardError(
                f"reward.functions: {', '.join(rubric.group_parts)} is marked group_rewards, which "
                f"scores episodes of one agent; that of task {several.task.id!r} has several "
                f"agents ({', '.join(several.seats)}); score each by a function of its own episode"
            )
        scores = await rubric.group_scores([EpisodeView.of(t) for t in finished])
    except RewardError as error:
        failed = Status("failed", "reward", str(error))
        told = told_of(error)
        changed = {
            t.id: replace(t, status=failed, reward=None, info={**t.info, **told})
            for t in finished
        }
        return tuple(changed.get(t.id, t) for t in trajectories)
    changed = {}
    for trajectory, own in zip(finished, scores, strict=True):
        values = {name: score.value for name, score in own.items()}
        why = {name: score.why for name, score in own.items() if score.why is not None}
        assert trajectory.reward is not None, "finished trajectories have one"
        changed[trajectory.id] = replace(
            trajectory,
            rewards={**trajectory.rewards, **values},
            reward=trajectory.reward + rubric.total(values),
            reasons={**trajectory.reasons, **why},
        )
    return tuple(changed.get(t.id, t) for t in trajectories)
