"""Roles that learn, and the partition of a batch over their ranks."""

from __future__ import annotations

from agentrl.training.actor import Actor, ActorSpec, ModelFacts
from agentrl.training.optimizer import OptimSpec
from agentrl.training.partition import (
    Layout,
    Plan,
    ShardPlan,
    merge_columns,
    partition,
    partition_groups,
    repack,
    sample_weights,
    shards,
    union,
)
from agentrl.training.process_group import DistSpec, join, leave
from agentrl.training.reference import Reference, ReferenceSpec
from agentrl.training.reward_model import RewardLearner, RewardLearnerSpec, RewardModel, RewardModelSpec

__all__ = [
    "Actor",
    "ActorSpec",
    "DistSpec",
    "Layout",
    "ModelFacts",
    "OptimSpec",
    "Plan",
    "Reference",
    "ReferenceSpec",
    "RewardLearner",
    "RewardLearnerSpec",
    "RewardModel",
    "RewardModelSpec",
    "ShardPlan",
    "join",
    "leave",
    "merge_columns",
    "partition",
    "partition_groups",
    "repack",
    "sample_weights",
    "shards",
    "union",
]
