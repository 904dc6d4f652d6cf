"""The reward model on one rank of its pool: scores of whole samples, and learning them from pairs.

Axes: S samples of a shard, M samples and C pairs of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.algorithms import AlgorithmSpec, PairInputs
from agentrl.errors import ConfigError, DataError
from agentrl.training.data.packing import Packed, micro_batches
from agentrl.training.determinism import use_deterministic_kernels
from agentrl.training.fsdp.process_group import DistSpec, data_mesh
from agentrl.training.fsdp.sharding import shard_over, without_gradients
from agentrl.training.models.packed_model import DType, torch_dtype
from agentrl.training.models.score_model import load_score_model
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.roles.learner import Learner, LearningRole
from agentrl.training.roles.model_info import ModelInfo, model_facts
from agentrl.training.roles.update_stats import StatSum
from agentrl.types import BatchShard, Collect, Dispatch, Stats, register

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RewardModelSpec:
    """What a reward model that only scores is built from; picklable.

    Args:
        model_path: a Hugging Face folder of a sequence classifier with one label.
        dtype: of the forward.
        attention: ``segments`` anywhere, ``flash_attention_2`` on a GPU that has it.
        deterministic: refuse kernels whose result depends on timing.
    """

    model_path: str
    dtype: DType = "float32"
    attention: Literal["segments", "flash_attention_2"] = "segments"
    deterministic: bool = False

    def build(self, place: DistSpec) -> RewardModel:
        """The role on one rank."""
        return RewardModel(self, place)


@dataclass(frozen=True, slots=True)
class RewardLearnerSpec:
    """What a reward model in training is built from; picklable.

    Args:
        model_path: a Hugging Face folder; a causal model's gets a head of its own.
        algorithm: whose pair loss it minimises.
        optim: how weights move.
        total_steps: optimizer steps after which the schedule ends; None for a constant one alone.
        head_seed: of a new head's weights.
        dtype: of the forward; parameters and optimizer are float32.
        attention: ``segments`` anywhere, ``flash_attention_2`` on a GPU that has it.
        gradient_checkpointing: recompute layers in the backward.
        deterministic: refuse kernels whose result depends on timing.
    """

    model_path: str
    algorithm: AlgorithmSpec
    optim: OptimSpec = field(default_factory=OptimSpec)
    total_steps: int | None = None
    head_seed: int = 0
    dtype: DType = "float32"
    attention: Literal["segments", "flash_attention_2"] = "segments"
    gradient_checkpointing: bool = False
    deterministic: bool = False

    def build(self, place: DistSpec) -> RewardLearner:
        """The role on one rank."""
        return RewardLearner(self, place)


class RewardModel:
    """One rank of a reward model. ``process_group.join`` comes first; every method is called on all
    ranks alike.

    Args:
        spec: what to build.
        place: this rank's place.

    Raises:
        DataError: the folder holds no reward model.
        ConfigError: the family can't be read packed.
    """

    def __init__(self, spec: RewardModelSpec | RewardLearnerSpec, place: DistSpec) -> None:
        if spec.deterministic:
            use_deterministic_kernels()
        self.device = torch.device(place.device)
        self.dtype = torch_dtype(spec.dtype)
        if isinstance(spec, RewardLearnerSpec):
            self.model = load_score_model(
                spec.model_path,
                "ActorSpec.model_path",
                attention=spec.attention,
                head_seed=spec.head_seed,
                gradient_checkpointing=spec.gradient_checkpointing,
                device=self.device,
            )
        else:
            self.model = load_score_model(
                spec.model_path,
                "RewardModelSpec.model_path",
                attention=spec.attention,
                device=self.device,
            )
            self.model.requires_grad_(False)
        self._facts = model_facts(self.model)
        shard_over(self.model, data_mesh(place), dtype=self.dtype)

    @register(Dispatch.FIRST)
    def facts(self) -> ModelInfo:
        """Sizes of the model."""
        return self._facts

    @register(Dispatch.DATA)
    def scores(self, shard: BatchShard) -> npt.NDArray[np.float32]:
        """``[S]`` float32 scores of the shard's samples, read at their last tokens; they may be not
        finite."""
        found = np.zeros(shard.batch.num_samples, dtype=np.float32)
        with without_gradients(self.model):
            for packed in micro_batches(
                shard, self.device, share_prefixes=self.model.shares_prefixes
            ):
                scores = self.model(packed)
                if packed.rows.size:
                    found[packed.rows] = scores.cpu().numpy()
        return found


class RewardLearner(RewardModel, LearningRole):
    """A reward model in training, on groups of two whose sibling 0 is the better.

    Raises:
        ConfigError: as ``RewardModel``, or the algorithm has no pair loss.
    """

    def __init__(self, spec: RewardLearnerSpec, place: DistSpec) -> None:
        if spec.algorithm.pair_loss is None:
            raise ConfigError(
                f"algorithm {spec.algorithm.name!r} has no pair_loss, which a reward model learns "
                "by"
            )
        super().__init__(spec, place)
        self.folder = Path(spec.model_path)
        self._pair_loss = spec.algorithm.pair_loss
        self.learner = Learner(
            spec.optim, self.model, self.model.head, "reward model", spec.total_steps
        )

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        """One optimizer step on a mini-batch: L = Σ_p w_p · ℓ_p over the pairs of all ranks.

        Returns:
            This rank's statistics, to be merged over ranks.

        Raises:
            ValueError: the shard has no sample weights.
            DataError: a trajectory of a micro-batch lacks its sibling.
            TrainingError: the gradient is not finite; no step was taken.
        """
        if shard.sample_weight is None:
            raise ValueError("an update needs sample weights: shards(batch, plan, weights)")
        weights = torch.tensor(shard.sample_weight, device=self.device)
        stats = StatSum()
        for packed in micro_batches(shard, self.device, share_prefixes=self.model.shares_prefixes):
            self._backward(packed, shard, weights, stats)
        once = self.learner.step()
        return Stats(stats.result()) + once

    def _backward(self, packed: Packed, shard: BatchShard, weights: Tensor, stats: StatSum) -> None:
        scores = self.model(packed)
        if not packed.rows.size:
            torch.autograd.backward(scores.sum() * 0.0)
            return
        batch = shard.batch
        chosen, rejected = _pairs(packed.rows, batch.trajectory, batch.group, batch.rollout_index)
        margin = batch.credit[batch.trajectory[packed.rows]]
        inputs = PairInputs(
            chosen=scores[torch.from_numpy(chosen).to(self.device)],
            rejected=scores[torch.from_numpy(rejected).to(self.device)],
            margin=torch.from_numpy(margin[chosen] - margin[rejected]).to(self.device),
        )
        outcome = self._pair_loss(inputs)
        weight = weights[torch.from_numpy(packed.rows[chosen]).to(self.device)]
        torch.autograd.backward((outcome.loss * weight.to(outcome.loss.dtype)).sum())
        for name, stat in outcome.stats.items():
            stats.add(name, stat.sum, stat.count)
        stats.add_values("reward_model/loss", outcome.loss)


def _pairs(
    rows: I64,
    trajectory: npt.NDArray[np.int32],
    group: npt.NDArray[np.int32],
    rollout_index: npt.NDArray[np.int32],
) -> tuple[I64, I64]:
    """Places in ``rows`` of the better trajectory of each pair, and of the other.

    Raises:
        DataError: a group of the micro-batch is no pair of one sample each.
    """
    owners = trajectory[rows]
    first = np.flatnonzero(rollout_index[owners] == 0)
    second = np.flatnonzero(rollout_index[owners] == 1)
    first = first[np.argsort(group[owners[first]], kind="stable")]
    second = second[np.argsort(group[owners[second]], kind="stable")]
    whole = first.size == second.size and first.size + second.size == rows.size
    if not whole or bool((group[owners[first]] != group[owners[second]]).any()):
        raise DataError(
            f"a reward model learns from pairs, one sample each, but {rows.size} samples of a "
            f"micro-batch are {first.size} better and {second.size} other ones"
        )
    return first, second
