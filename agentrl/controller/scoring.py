"""Scoring: gives finished episodes a reward model's scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.errors import AgentRLError, RewardError
from agentrl.metrics import REWARD_MODEL_PART
from agentrl.rollouts import GroupOutcome, make_batch
from agentrl.training import Layout, ModelInfo, RewardModel, shards
from agentrl.training.data.partition import partition
from agentrl.types import Batch, Status, Trajectory, TrajectoryGroup


class SequenceScores:
    """Scores of trajectories by a reward model, each read at the end of its last sequence.

    Args:
        model: the reward model's ranks.
        micro_batch_tokens: tokens of one forward of a rank.
    """

    def __init__(self, model: RoleHandle, micro_batch_tokens: int) -> None:
        self._model = model
        self._micro_batch_tokens = micro_batch_tokens
        self._facts: ModelInfo | None = None

    @property
    def max_tokens(self) -> int:
        """The longest sequence that can be scored."""
        longest = self._model_facts.max_tokens
        return (
            self._micro_batch_tokens if longest is None else min(longest, self._micro_batch_tokens)
        )

    def of(self, groups: Sequence[TrajectoryGroup]) -> npt.NDArray[np.float32]:
        """``[J]`` scores of the finished trajectories of ``groups``, in order; they may be not
        finite."""
        batch = _last_sequences(groups)
        layout = Layout(
            self._model.group.mesh.dp, self._micro_batch_tokens, self._model_facts.length_scale
        )
        (plan,) = partition(batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout)
        parts = shards(batch, plan)
        scores = np.full(batch.num_samples, np.nan, dtype=np.float32)
        for part, found in zip(parts, self._model.call(RewardModel.scores, parts), strict=True):
            scores[part.samples] = found
        return scores

    @property
    def _model_facts(self) -> ModelInfo:
        if self._facts is None:
            self._facts = self._model.call(RewardModel.facts)
        return self._facts


def _last_sequences(groups: Sequence[TrajectoryGroup]) -> Batch:
    """The last sequence of each finished trajectory, whatever it was sampled with, in order."""
    plain = [
        replace(
            group,
            trajectories=tuple(
                replace(t, turns=tuple(replace(turn, sampling=None) for turn in t.turns))
                for t in group.finished
            ),
        )
        for group in groups
    ]
    batch = make_batch(
        plain, credit=np.zeros(sum(len(group.trajectories) for group in plain), dtype=np.float32)
    )
    last = np.zeros(batch.num_trajectories, dtype=np.int64)
    # a later sample of a trajectory goes over an earlier one
    last[batch.trajectory] = np.arange(batch.num_samples)
    return batch.select(last)


@dataclass(frozen=True, slots=True, eq=False)
class RewardScorer:
    """Gives finished trajectories the part ``reward_model``, and its weight in their reward.

    Args:
        scores: by the reward model.
        weight: of the score in the reward.
        one_by_one: score each group in a call of its own, so that a score never depends on what
            came in beside it.
    """

    scores: SequenceScores
    weight: float
    one_by_one: bool = False

    def score(self, outcomes: Sequence[GroupOutcome]) -> list[GroupOutcome]:
        """The same outcomes with scores; a trajectory that cannot be scored has failed at the
        boundary ``reward``.

        Raises:
            RewardError: the reward model failed as a whole.
        """
        parts = [[outcome] for outcome in outcomes] if self.one_by_one else [outcomes]
        try:
            return [scored for part in parts for scored in self._together(part)]
        except AgentRLError as error:
            group_indices = ", ".join(str(outcome.request.group_index) for outcome in outcomes)
            raise RewardError(
                f"the reward model could not score the groups of draws {group_indices}: {error}"
            ) from error

    def _together(self, outcomes: Sequence[GroupOutcome]) -> list[GroupOutcome]:
        readable = [self._without_unreadable(outcome.group) for outcome in outcomes]
        scores = iter(
            self.scores.of(readable).tolist() if any(group.finished for group in readable) else ()
        )
        return [
            replace(
                outcome,
                group=replace(
                    group,
                    trajectories=tuple(
                        self._with_score(t, next(scores))
                        if t.status.finished and t.reward is not None
                        else t
                        for t in group.trajectories
                    ),
                ),
            )
            for outcome, group in zip(outcomes, readable, strict=True)
        ]

    def _without_unreadable(self, group: TrajectoryGroup) -> TrajectoryGroup:
        return replace(
            group,
            trajectories=tuple(self._readable(trajectory) for trajectory in group.trajectories),
        )

    def _readable(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory, or its failure where the reward model cannot read it."""
        if not trajectory.status.finished or trajectory.reward is None:
            return trajectory
        samples = trajectory.samples()
        if not samples:
            return _failed(trajectory, "has no tokens to score; use an engine that returns ids")
        if len(samples[-1]) > self.scores.max_tokens:
            return _failed(
                trajectory,
                f"has {len(samples[-1])} tokens, the reward model reads {self.scores.max_tokens} "
                "(StageSettings.logprob_micro_batch_tokens, and its own max_position_embeddings)",
            )
        return trajectory

    def _with_score(self, trajectory: Trajectory, score: float) -> Trajectory:
        if not math.isfinite(score):
            return _failed(trajectory, f"got the score {score}")
        assert trajectory.reward is not None, "finished trajectories have one"
        reward = trajectory.reward + self.weight * score
        return replace(
            trajectory, rewards={**trajectory.rewards, REWARD_MODEL_PART: score}, reward=reward
        )


def _failed(trajectory: Trajectory, why: str) -> Trajectory:
    detail = f"trajectory {trajectory.id} {why}"
    return replace(trajectory, status=Status("failed", "reward", detail), reward=None)
