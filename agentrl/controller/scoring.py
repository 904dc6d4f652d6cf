"""Scoring: gives finished episodes a reward model's scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.errors import AgentRLError, RankLostError, RewardError
from agentrl.metrics import REWARD_MODEL_PART
from agentrl.rollouts import GroupOutcome, make_batch
from agentrl.training import Layout, ModelInfo, RewardModel, shards
from agentrl.training.data.partition import partition
from agentrl.types import REWARD_STYLE, Batch, Status, Trajectory, TrajectoryGroup
from agentrl.types.arrays import F32

Score: TypeAlias = Callable[[Sequence[GroupOutcome]], Sequence[GroupOutcome]]
"""Gives outcomes their scores by a reward model."""


@dataclass(frozen=True, eq=False)
class SequenceScores:
    """Scores of trajectories by a reward model, each read at the end of its last sequence.

    Args:
        model: the reward model's ranks.
        micro_batch_tokens: tokens of one forward of a rank.
    """

    model: RoleHandle
    micro_batch_tokens: int

    @cached_property
    def _facts(self) -> ModelInfo:
        found: ModelInfo = self.model.call(RewardModel.facts)
        return found

    @property
    def max_tokens(self) -> int:
        """The longest sequence that can be scored."""
        return min(
            self._facts.max_tokens or self.micro_batch_tokens, self.micro_batch_tokens
        )

    def of(self, groups: Sequence[TrajectoryGroup]) -> F32:
        """``[J]`` scores of the ``rewarded`` trajectories of ``groups``, in order; they may be not
        finite."""
        batch = _last_sequences(groups)
        layout = Layout(
            self.model.group.mesh.dp, self.micro_batch_tokens, self._facts.length_scale
        )
        (plan,) = partition(
            batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout
        )
        parts = shards(batch, plan)
        scores = np.full(batch.num_samples, np.nan, dtype=np.float32)
        for part, found in zip(
            parts, self.model.call(RewardModel.scores, parts), strict=True
        ):
            scores[part.samples] = found
        return scores


def _last_sequences(groups: Sequence[TrajectoryGroup]) -> Batch:
    """The last sequence of each rewarded trajectory, whatever it was sampled with, in order."""
    # A batch has no baselines and refuses greedy or mixed temperatures; a score asks for neither.
    plain = [
        replace(
            group,
            trajectories=tuple(
                replace(
                    t,
                    purpose="train",
                    turns=tuple(replace(turn, sampling=None) for turn in t.turns),
                )
                for t in group.rewarded
            ),
        )
        for group in groups
    ]
    batch = make_batch(
        plain,
        credit=np.zeros(sum(len(group.trajectories) for group in plain), dtype=np.float32),
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
        boundary ``reward``. A task whose style is ``rule`` (verl's ``reward_model.style``) is not
        scored.

        Raises:
            RewardError: the reward model failed as a whole; retryable where its failure is.
            RankLostError: a rank of it was lost.
        """
        ours = [one for one in outcomes if one.group.task.info.get(REWARD_STYLE) != "rule"]
        parts = [[outcome] for outcome in ours] if self.one_by_one else [ours]
        try:
            scored = iter([scored for part in parts for scored in self._together(part)])
            return [
                one if one.group.task.info.get(REWARD_STYLE) == "rule" else next(scored)
                for one in outcomes
            ]
        except RankLostError:
            raise
        except AgentRLError as error:
            group_indices = ", ".join(
                str(outcome.request.group_index) for outcome in outcomes
            )
            raise RewardError(
                f"the reward model could not score the groups of draws {group_indices}: {error}",
                retryable=error.retryable,
            ) from error

    def _together(self, outcomes: Sequence[GroupOutcome]) -> list[GroupOutcome]:
        groups = [outcome.group.with_rewarded(self._readable) for outcome in outcomes]
        any_rewarded = any(group.rewarded for group in groups)
        scores = iter(self.scores.of(groups).tolist() if any_rewarded else ())
        return [
            replace(
                outcome,
                group=group.with_rewarded(lambda t: self._with_score(t, next(scores))),
            )
            for outcome, group in zip(outcomes, groups, strict=True)
        ]

    def _readable(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory, or its failure where the reward model cannot read it."""
        if trajectory.seats:
            return failed_score(
                trajectory,
                "has several agents, and a reward model (reward.model) scores an episode of one; "
                "score each agent by a reward function",
            )
        samples = trajectory.samples()
        if not samples:
            return failed_score(
                trajectory, "has no tokens to score; use an engine that returns ids"
            )
        if len(samples[-1]) > self.scores.max_tokens:
            return failed_score(
                trajectory,
                f"has {len(samples[-1])} tokens, the reward model reads {self.scores.max_tokens} "
                "(TrainConfig.logprob_micro_batch_tokens, and its own max_position_embeddings)",
            )
        return trajectory

    def _with_score(self, trajectory: Trajectory, score: float) -> Trajectory:
        if not math.isfinite(score):
            return failed_score(trajectory, f"got the score {score}")
        assert trajectory.reward is not None, "finished trajectories have one"
        reward = trajectory.reward + self.weight * score
        return replace(
            trajectory,
            rewards={**trajectory.rewards, REWARD_MODEL_PART: score},
            reward=reward,
        )


def failed_score(trajectory: Trajectory, why: str) -> Trajectory:
    """A trajectory without a score has failed at the boundary ``reward``: it is never worth 0."""
    detail = f"trajectory {trajectory.id} {why}"
    return replace(trajectory, status=Status("failed", "reward", detail), reward=None)
