"""The critic: what each state of an episode is worth, learned beside the policy, on one rank.

A state is what stands before a trained token, or behind a trajectory's last one.

Axes: T packed tokens of a shard, N trained tokens and M samples of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from agentrl.algorithms import ValueInputs
from agentrl.algorithms.functions.losses import given
from agentrl.errors import ConfigError
from agentrl.training.backends.backend import StatSum
from agentrl.training.data.packing import Packed
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.roles.advantages import last_trained
from agentrl.training.roles.learner import LearnerSpec, LearningRole, check_tokens
from agentrl.types import BatchShard, Collect, Dispatch, Stats, register
from agentrl.types.arrays import Floats


@dataclass(frozen=True, slots=True)
class CriticSpec(LearnerSpec):
    """What a critic is built from; a causal model's folder gets a head of its own.

    Args:
        head_seed: of a new head's weights.
    """

    setting = "CriticSpec.model_path"
    head_seed: int = 0

    def build(self, place: DistSpec) -> Critic:
        """The role on one rank."""
        return Critic(self, place)


class Critic(LearningRole):
    """One rank of a critic.

    Raises:
        ConfigError: as ``Role``, or the algorithm has no loss of values.
    """

    name = "critic"
    kind = "values"
    spec: CriticSpec

    def __init__(self, spec: CriticSpec, place: DistSpec) -> None:
        if spec.algorithm.value_loss is None:
            raise ConfigError(
                f"algorithm {spec.algorithm.name!r} has no value_loss, which a critic learns by"
            )
        self._value_loss = spec.algorithm.value_loss
        super().__init__(spec, place)

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def values(self, shard: BatchShard) -> dict[str, Floats]:
        """``{"values": [T], "final_values": [T]}``: of the state before each trained token, and on
        the last one of each trajectory that behind the last token of its sample; zeros elsewhere.
        """
        batch = shard.batch
        values = np.zeros(batch.num_tokens, dtype=self.column_dtype)
        ends = np.zeros(batch.num_samples, dtype=self.column_dtype)
        self.infer(
            shard,
            lambda packed, answer: [
                (values, packed.source, answer[0]),
                (ends, packed.rows, answer[1]),
            ],
        )
        final_values = np.zeros_like(values)
        last = last_trained(batch)
        samples = np.repeat(np.arange(batch.num_samples), batch.lengths)
        final_values[last] = ends[samples[last]]
        return {"values": values, "final_values": final_values}

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        """One optimizer step on a mini-batch: L = Σ_t w_s(t) · ℓ_t over all ranks' trained tokens.

        Returns:
            This rank's statistics, to be merged over ranks. A mini-batch without trained tokens
            takes no step and counts in ``optim/skipped``.

        Raises:
            ValueError: the shard has no sample weights, values or returns.
            TrainingError: the gradient is not finite; no step was taken.
        """
        return self.learn(shard, shard.batch.loss_mask != 0, self._loss, sums=["loss"])

    def _loss(
        self, packed: Packed, answer: tuple[Tensor, Tensor], stats: StatSum
    ) -> Tensor:
        values, final = answer
        trained = packed.trained
        if not trained.numel():
            return (values.sum() + final.sum()) * 0.0
        old, returns = (
            given(packed.columns.get(one), one) for one in ("values", "returns")
        )
        inputs = ValueInputs(values[trained], old[trained], returns[trained])
        outcome = self._value_loss(inputs)
        check_tokens(outcome.loss, inputs.values, self.spec.algorithm.told("value_loss"))
        weight = packed.columns["weight"][trained]
        loss = (outcome.loss * weight).sum()
        stats.add("loss", loss.detach(), 0)
        stats.add_all(outcome.stats)
        return loss
