"""The ranks of a role as the driver calls them: the policy's, and a reward model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from agentrl.controller.batch_plan import MiniBatch, PlannedBatch
from agentrl.controller.cluster.role_group import WorkerGroup
from agentrl.training import Actor, ModelInfo, Reference, RewardLearner, RewardModel, merge_columns
from agentrl.types import BatchShard, Collect, Dispatch, Stats, registration

__all__ = ["ActorHandle", "LearnerHandle", "RewardLearnerHandle", "invoke", "sample_scores"]


def invoke(group: WorkerGroup, role: str, method: Callable[..., Any], *args: Any) -> Any:
    """Calls a registered method over a group, as its mark says (docs/training.md, Dispatch).

    Args:
        group: the ranks.
        role: the role's name in the workers.
        method: the role class's own function, marked with ``@register``.
        args: for ``DATA`` the shards by coordinate, then arguments for all; otherwise arguments for all.

    Returns:
        For ALL and a plain DATA call a list by rank; for FIRST and RANK_ZERO rank 0's answer; statistics merged.
    """
    mark = registration(method)
    name = method.__name__
    if mark.dispatch is Dispatch.DATA:
        parts, shared = args[0], args[1:]
        answers = group.call(role, name, [(part, *shared) for part in parts])
        return sum(answers, Stats()) if mark.collect is Collect.STATS else answers
    if mark.dispatch is Dispatch.RANK_ZERO:
        return group.call(role, name, [args])[0]
    answers = group.call(role, name, [args] * group.num_ranks)
    return answers[0] if mark.dispatch is Dispatch.FIRST else answers


def sample_scores(
    group: WorkerGroup, parts: Sequence[BatchShard], num_samples: int
) -> npt.NDArray[np.float32]:
    """``[S]`` scores of a batch's samples by the reward model of a group; NaN for samples that no part has."""
    scores = np.full(num_samples, np.nan, dtype=np.float32)
    for part, found in zip(
        parts, invoke(group, "reward_model", RewardModel.scores, parts), strict=True
    ):
        scores[part.samples] = found
    return scores


class LearnerHandle:
    """The role of a group that a stage trains.

    Args:
        group: its ranks.
    """

    role: ClassVar[str]
    kind: ClassVar[type[Actor | RewardLearner]]

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group

    @property
    def num_ranks(self) -> int:
        return self._group.num_ranks

    def facts(self) -> ModelInfo:
        """Sizes of the model."""
        found: ModelInfo = invoke(self._group, self.role, self.kind.facts)
        return found

    def update(self, mini_batch: MiniBatch) -> Stats:
        """One optimizer step."""
        stats: Stats = invoke(self._group, self.role, self.kind.update, mini_batch.shards)
        return stats

    def save(self, folder: Path) -> None:
        """Model, optimizer and schedule, for ``load``."""
        invoke(self._group, self.role, self.kind.save, folder)

    def load(self, folder: Path) -> None:
        """What ``save`` kept."""
        invoke(self._group, self.role, self.kind.load, folder)

    def export(self, folder: Path) -> None:
        """An ordinary Hugging Face folder of the model."""
        invoke(self._group, self.role, self.kind.export, folder)


class RewardLearnerHandle(LearnerHandle):
    """The reward model that a stage trains."""

    role = "reward_model"
    kind = RewardLearner


class ActorHandle(LearnerHandle):
    """The policy that a stage trains."""

    role = "actor"
    kind = Actor

    def logprobs(self, batch: PlannedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """``old_logprobs [T]``: the policy's own before the first update of the batch."""
        return self._columns(Actor.logprobs, batch)

    def advantages(self, batch: PlannedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """``advantages [T]``, their moments taken over all ranks where the algorithm normalises."""
        return self._columns(Actor.advantages, batch)

    def reference_logprobs(self, batch: PlannedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """``ref_logprobs [T]`` of the frozen reference beside the actor."""
        return self._columns(Reference.logprobs, batch, role="reference")

    def _columns(
        self, method: Callable[..., Any], batch: PlannedBatch, *, role: str = "actor"
    ) -> dict[str, npt.NDArray[np.float32]]:
        parts: Sequence[BatchShard] = batch.forward_shards()
        return merge_columns(
            invoke(self._group, role, method, parts), parts, batch.batch.cu_seqlens
        )
