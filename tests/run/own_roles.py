"""Roles of a user's: one that judges, and one for each way to break the contract."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.training import CriticSpec, DistSpec, LearnerSpec, LearningRole, ModelSpec
from agentrl.training.roles.advantages import last_trained
from agentrl.training.roles.policy import PolicyRole
from agentrl.types import BatchShard, Collect, Dispatch, Stats, register


@dataclass(frozen=True, slots=True)
class SurpriseSpec(ModelSpec):
    """Says what an episode costs: how much its tokens surprise a model.

    Args:
        breaks: how its pass breaks the contract; empty for not at all.
    """

    breaks: str = ""

    def build(self, place: DistSpec) -> object:
        return object() if self.breaks == "build" else Surprise(self, place)


class Surprise(PolicyRole):
    spec: SurpriseSpec

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def costs(self, shard: BatchShard) -> Any:
        batch = shard.batch
        column = np.zeros(batch.num_tokens, np.float32)
        owner = np.repeat(batch.trajectory, batch.lengths)
        totals = np.bincount(owner, self.trained_logprobs(shard), batch.num_trajectories)
        last = last_trained(batch)
        column[last] = -totals[owner[last]] / 100
        if self.spec.breaks == "exits":
            sys.exit(0)
        return {"costs": column[1:] if self.spec.breaks == "shape" else column}

    @register(Dispatch.DATA)
    def unmarked(self, shard: BatchShard) -> Any:
        return self.costs(shard)


@dataclass(frozen=True, slots=True)
class SilentSpec(LearnerSpec):
    """Of a learner whose update says nothing, or that has none."""

    has_update: bool = True

    def build(self, place: DistSpec) -> LearningRole:
        return (Silent if self.has_update else Idle)(self, place)


class Idle(LearningRole):
    kind = "policy"


class Silent(Idle):
    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        return None  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class NoReturnsSpec(CriticSpec):
    """Of a critic that no algorithm tells what its values should be."""


@dataclass(frozen=True, slots=True)
class BrokenSpec(CriticSpec):
    """Of a critic that cannot be built."""

    def build(self, place: DistSpec) -> Any:
        raise RuntimeError("no such card")


NUMBER = 7
