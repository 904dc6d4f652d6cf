"""Batch plan: a batch with its partition, made once a step and used by every pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from agentrl.algorithms import AlgorithmSpec, AlgorithmState
from agentrl.training import Layout, Plan, repack, sample_weights, shards, union
from agentrl.training.data.partition import auxiliary_weights, partition
from agentrl.training.data.prefix_tree import PrefixOrder
from agentrl.types import Batch, BatchShard
from agentrl.types.env import MAIN_POLICY


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """A step's batch.

    Args:
        batch: its columns.
        updates: a plan for each optimizer step of one pass, with the samples' weights in it.
        forward: a plan over all samples for passes without a backward.
        auxiliary: ``[T]`` the tokens of each auxiliary loss.
        algorithm_state: what the algorithm carries from step to step.
        policy_version: of the weights that are trained.
        agents: the agent of each trajectory.
        policy: that is trained.
    """

    batch: Batch
    updates: tuple[tuple[Plan, npt.NDArray[np.float64]], ...]
    forward: Plan
    auxiliary: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    algorithm_state: AlgorithmState = field(default_factory=dict)
    policy_version: int = 0
    agents: tuple[str, ...] = ()
    policy: str = MAIN_POLICY

    @classmethod
    def plan(
        cls,
        batch: Batch,
        algorithm: AlgorithmSpec,
        layout: Layout,
        *,
        mini_batch_groups: int,
        forward_tokens: int,
        seed: int,
        state: AlgorithmState,
        policy_version: int,
        share_prefixes: bool = False,
    ) -> PlannedBatch:
        """Cuts a batch (docs/training.md, Partition).

        Where both micro-batch sizes are equal, a forward pass meets the very micro-batches of the
        update, so that recomputed and current logprobs are equal to the last bit before the first
        step. An algorithm that compares rollouts never has them in different micro-batches.

        Args:
            batch: its columns.
            algorithm: whose partition and reduction decide.
            layout: of the update.
            mini_batch_groups: groups of one optimizer step.
            forward_tokens: the most tokens of a micro-batch of ``forward``.
            seed: of the order of groups.
            share_prefixes: whether every learner computes a common beginning once a micro-batch.
        """
        groups = batch.group[batch.trajectory]
        prefixes = None
        if share_prefixes:
            prefixes = PrefixOrder.of(batch.identities(), batch.cu_seqlens, groups)
        plans = partition(
            batch.lengths,
            groups,
            seed=seed,
            layout=layout,
            mini_batch_groups=mini_batch_groups,
            unit=algorithm.partition,
            trajectory=batch.trajectory,
            prefixes=prefixes,
        )
        forward = union(plans)
        if forward_tokens != layout.micro_batch_tokens:
            smaller = replace(layout, micro_batch_tokens=forward_tokens)
            forward = repack(forward, batch.lengths, smaller, prefixes)
        updates = ((plan, sample_weights(batch, plan, algorithm.reduction)) for plan in plans)
        auxiliary = {one.name: one.select(batch) for one in algorithm.auxiliary}
        return cls(batch, tuple(updates), forward, auxiliary, state, policy_version)

    def mini_batches(self, num_passes: int) -> Iterator[list[BatchShard]]:
        """The shards of optimizer step after optimizer step, over ``num_passes`` passes."""
        for _ in range(num_passes):
            for plan, weights in self.updates:
                own = {
                    name: auxiliary_weights(self.batch, plan, tokens)
                    for name, tokens in self.auxiliary.items()
                }
                yield self._shards(plan, weights, own)

    def forward_shards(self) -> list[BatchShard]:
        """The shards of a pass without a backward."""
        return self._shards(self.forward)

    def _shards(
        self,
        plan: Plan,
        weights: npt.NDArray[np.float64] | None = None,
        auxiliary: Mapping[str, npt.NDArray[np.float32]] | None = None,
    ) -> list[BatchShard]:
        return shards(
            self.batch,
            plan,
            weights,
            auxiliary=auxiliary,
            algorithm_state=self.algorithm_state,
            policy_version=self.policy_version,
        )
