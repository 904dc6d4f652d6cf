"""Batch plan: a batch with its partition, made once a step and used by every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from agentrl.algorithms import Counts
from agentrl.training import Layout, Plan, partition_groups, repack, sample_weights, shards, union
from agentrl.training.data.partition import partition
from agentrl.types import Batch, BatchShard

Reduction = Callable[[Counts], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """The samples of one optimizer step, one shard a data-parallel coordinate, with their
    weights."""

    shards: tuple[BatchShard, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """A step's batch.

    Args:
        batch: its columns.
        updates: a plan for each optimizer step of one pass, with the samples' weights in it.
        forward: a plan over all samples for passes without a backward.
    """

    batch: Batch
    updates: tuple[tuple[Plan, npt.NDArray[np.float64]], ...]
    forward: Plan

    @classmethod
    def plan(
        cls,
        batch: Batch,
        *,
        num_ranks: int,
        mini_batch_groups: int,
        micro_batch_tokens: int,
        logprob_micro_batch_tokens: int,
        length_scale: float,
        reduction: Reduction,
        seed: int,
        whole_groups: bool = False,
    ) -> PlannedBatch:
        """Cuts a batch (docs/training.md, Partition).

        Where both micro-batch sizes are equal, a forward pass meets the very micro-batches of the
        update, so that recomputed and current logprobs are equal to the last bit before the first
        step. With ``whole_groups`` rollouts are never in different micro-batches.
        """
        layout = Layout(num_ranks, micro_batch_tokens, length_scale)
        groups = batch.group[batch.trajectory]
        cut = partition_groups if whole_groups else partition
        plans = cut(
            batch.lengths, groups, seed=seed, layout=layout, mini_batch_groups=mini_batch_groups
        )
        forward = union(plans)
        if logprob_micro_batch_tokens != micro_batch_tokens:
            forward = repack(
                forward,
                batch.lengths,
                replace(layout, micro_batch_tokens=logprob_micro_batch_tokens),
            )
        return cls(
            batch, tuple((plan, sample_weights(batch, plan, reduction)) for plan in plans), forward
        )

    def join(self, columns: Mapping[str, npt.NDArray[np.float32]]) -> PlannedBatch:
        """The batch with ``[T]`` columns that a pass returned."""
        return replace(self, batch=self.batch.join(columns))

    def forward_shards(self) -> list[BatchShard]:
        """Every sample once, for a pass without a backward."""
        return shards(self.batch, self.forward)

    def mini_batches(self, num_passes: int) -> Iterator[MiniBatch]:
        """Optimizer step after optimizer step, over ``num_passes`` passes."""
        for _ in range(num_passes):
            for plan, weights in self.updates:
                yield MiniBatch(tuple(shards(self.batch, plan, weights)))
