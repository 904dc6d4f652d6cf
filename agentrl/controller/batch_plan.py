"""Batch plan: a batch with its partition, made once a step and used by every pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from agentrl.algorithms import AlgorithmSpec, AlgorithmState
from agentrl.training import Layout, Plan, repack, sample_weights, shards, union
from agentrl.training.data.partition import auxiliary_weights, partition
from agentrl.training.data.prefix_tree import PrefixOrder
from agentrl.types import Batch, BatchShard
from agentrl.types.arrays import F32, F64, Bools
from agentrl.types.env import MAIN_POLICY


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The plans of a step for one number of data coordinates.

    Args:
        updates: one for each optimizer step of a pass, with the samples' weights in it.
        forward: over all samples, for passes without a backward.
    """

    updates: tuple[tuple[Plan, F64], ...]
    forward: Plan


Shards: TypeAlias = Callable[[int], list[BatchShard]]
"""Cuts samples of a batch for a number of data coordinates, once for each number."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """A step's batch.

    Args:
        batch: its columns.
        partitions: by the number of data coordinates of a group, those of the model first. A
            mini-batch has the same samples in each.
        auxiliary: ``[T]`` the tokens of each auxiliary loss.
        algorithm_state: what the algorithm carries from step to step.
        policy_version: of the weights that are trained.
        agents: the agent of each trajectory.
        policy: that is trained.
    """

    batch: Batch
    partitions: Mapping[int, Partition]
    auxiliary: Mapping[str, Bools] = field(default_factory=dict)
    algorithm_state: AlgorithmState = field(default_factory=dict)
    policy_version: int = 0
    agents: tuple[str, ...] = ()
    policy: str = MAIN_POLICY

    def teaching_groups(self) -> frozenset[int]:
        """Indices of the groups of which some token has an advantage, whatever it is made of, or is
        read by an auxiliary loss."""
        batch = self.batch
        owners = np.repeat(batch.trajectory, batch.lengths)
        if batch.advantages is not None:
            teaches = np.bincount(
                owners[batch.advantages != 0], minlength=batch.num_trajectories
            )
        else:
            of_turns = batch.turn_trajectory[batch.turn_credit != 0]
            teaches = np.bincount(of_turns, minlength=batch.num_trajectories)
            teaches[batch.credit != 0] = 1
        for tokens in self.auxiliary.values():
            teaches[owners[tokens]] = 1
        return frozenset(batch.group_index[teaches > 0].tolist())

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
        others: Collection[int] = (),
    ) -> PlannedBatch:
        """Cuts a batch (docs/training.md, Partition).

        Where both micro-batch sizes are equal, a forward pass meets the very micro-batches of the
        update, so that recomputed and current logprobs are equal to the last bit before the first
        step. An algorithm that compares rollouts never has them in different micro-batches.

        Args:
            batch: its columns.
            algorithm: whose partition and reduction decide.
            layout: of the model's update.
            mini_batch_groups: groups of one optimizer step.
            forward_tokens: the most tokens of a micro-batch of ``forward``.
            seed: of the order of groups.
            share_prefixes: whether every learner computes a common beginning once a micro-batch.
            others: data coordinates of further groups.
        """
        groups = batch.group[batch.trajectory]
        prefixes = None
        if share_prefixes:
            prefixes = PrefixOrder.of(batch.identities(), batch.cu_seqlens, groups)

        def planned(layout: Layout) -> Partition:
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
            reduction = algorithm.reduction
            updates = ((plan, sample_weights(batch, plan, reduction)) for plan in plans)
            return Partition(tuple(updates), forward)

        sizes = dict.fromkeys((layout.data_parallel, *others))
        partitions = {size: planned(replace(layout, data_parallel=size)) for size in sizes}
        auxiliary = {one.name: one.select(batch) for one in algorithm.auxiliary}
        return cls(batch, partitions, auxiliary, state, policy_version)

    @property
    def updates(self) -> tuple[tuple[Plan, F64], ...]:
        """Of the model: a plan for each optimizer step of a pass, with the samples' weights."""
        return next(iter(self.partitions.values())).updates

    def mini_batches(self, num_passes: int) -> Iterator[Shards]:
        """What each optimizer step learns from, over ``num_passes`` passes."""
        for _ in range(num_passes):
            for number in range(len(self.updates)):
                yield cache(partial(self._mini_batch, number))

    def forward(self) -> Shards:
        """All samples, for passes without a backward."""
        return cache(lambda size: self._shards(self.partitions[size].forward))

    def _mini_batch(self, number: int, data_parallel: int) -> list[BatchShard]:
        plan, weights = self.partitions[data_parallel].updates[number]
        own = {
            name: auxiliary_weights(self.batch, plan, tokens)
            for name, tokens in self.auxiliary.items()
        }
        return self._shards(plan, weights, own)

    def _shards(
        self,
        plan: Plan,
        weights: F64 | None = None,
        auxiliary: Mapping[str, F32] | None = None,
    ) -> list[BatchShard]:
        return shards(
            self.batch,
            plan,
            weights,
            auxiliary=auxiliary,
            algorithm_state=self.algorithm_state,
            policy_version=self.policy_version,
        )
