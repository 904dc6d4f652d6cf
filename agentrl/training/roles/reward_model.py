"""The reward model on one rank of its pool: scores of whole samples, and learning them from pairs.

Axes: S samples of a shard, M samples and C pairs of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from agentrl.algorithms import PairInputs
from agentrl.errors import ConfigError, DataError
from agentrl.training.backends.backend import StatSum
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.roles.learner import LearnerSpec, LearningRole
from agentrl.training.roles.role import Role
from agentrl.types import Batch, BatchShard, Collect, Dispatch, Stats, register
from agentrl.types.arrays import F32, I64


@dataclass(frozen=True, slots=True)
class RewardModelSpec(ModelSpec):
    """What a reward model that only scores is built from: a folder of a sequence classifier with
    one label."""

    setting = "RewardModelSpec.model_path"

    def build(self, place: DistSpec) -> RewardModel:
        """The role on one rank."""
        return RewardModel(self, place)


@dataclass(frozen=True, slots=True)
class RewardLearnerSpec(LearnerSpec):
    """What a reward model in training is built from; a causal model's folder gets a head of its
    own.

    Args:
        head_seed: of a new head's weights.
    """

    head_seed: int = 0

    def build(self, place: DistSpec) -> RewardLearner:
        """The role on one rank."""
        return RewardLearner(self, place)


class RewardModel(Role):
    """One rank of a reward model."""

    kind = "scores"

    @register(Dispatch.DATA)
    def scores(self, shard: BatchShard) -> F32:
        """``[S]`` float32 scores of the shard's samples, read at their last tokens; they may be not
        finite."""
        found = np.zeros(shard.batch.num_samples, dtype=np.float32)
        self.infer(shard, lambda packed, scores: [(found, packed.rows, scores)])
        return found


class RewardLearner(RewardModel, LearningRole):
    """A reward model in training, on groups of two whose sibling 0 is the better.

    Raises:
        ConfigError: as ``Role``, or the algorithm has no pair loss.
    """

    name = "reward model"
    spec: RewardLearnerSpec

    def __init__(self, spec: RewardLearnerSpec, place: DistSpec) -> None:
        if spec.algorithm.pair_loss is None:
            raise ConfigError(
                f"algorithm {spec.algorithm.name!r} has no pair_loss, which a reward model learns "
                "by"
            )
        self._pair_loss = spec.algorithm.pair_loss
        super().__init__(spec, place)

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        """One optimizer step on a mini-batch: L = Σ_p w_p · ℓ_p over the pairs of all ranks.

        Returns:
            This rank's statistics, to be merged over ranks; with ``optim/not_finite`` where the
            gradient is not finite and no step was taken.

        Raises:
            ValueError: the shard has no sample weights.
            DataError: a trajectory of a micro-batch lacks its sibling.
            TrainingError: weights are gathered; no step was taken.
        """
        every = np.ones(shard.batch.num_samples, dtype=np.bool_)
        return self.learn(shard, every, self._loss, extras=partial(_pair_columns, shard))

    def _loss(self, packed: Packed, scores: Tensor, stats: StatSum) -> Tensor:
        if not packed.rows.size:
            return scores.sum() * 0.0
        columns = packed.columns
        inputs = PairInputs(
            chosen=scores[columns["chosen"]],
            rejected=scores[columns["rejected"]],
            margin=columns["margin"],
        )
        outcome = self._pair_loss(inputs)
        weight = columns["pair_weight"]
        stats.add_all(outcome.stats)
        stats.add_values("reward_model/loss", outcome.loss)
        return (outcome.loss * weight.to(outcome.loss.dtype)).sum()


def _pair_columns(shard: BatchShard, rows: I64) -> dict[str, npt.NDArray[Any]]:
    """The pairs of a micro-batch: places of both in ``rows``, margins of their rewards, weights."""
    batch = shard.batch
    assert shard.sample_weight is not None, "update has checked"
    chosen, rejected = _pairs(rows, batch)
    margin = batch.credit[batch.trajectory[rows]]
    return {
        "chosen": chosen,
        "rejected": rejected,
        "margin": margin[chosen] - margin[rejected],
        "pair_weight": shard.sample_weight[rows[chosen]],
    }


def _pairs(rows: I64, batch: Batch) -> tuple[I64, I64]:
    """Places in ``rows`` of the better trajectory of each pair, and of the other.

    Raises:
        DataError: a group of the micro-batch is no pair of one sample each.
    """
    owners = batch.trajectory[rows]
    groups = batch.group[owners]
    order = np.argsort(groups, kind="stable")
    first, second = (order[batch.rollout_index[owners[order]] == side] for side in (0, 1))
    if first.size + second.size != rows.size or not np.array_equal(
        groups[first], groups[second]
    ):
        raise DataError(
            f"a reward model learns from pairs, one sample each, but {rows.size} samples of a "
            f"micro-batch are {first.size} better and {second.size} other ones"
        )
    return first, second
