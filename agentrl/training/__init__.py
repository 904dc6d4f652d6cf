"""Roles that learn, and the partition of a batch over their ranks."""

from __future__ import annotations

from agentrl.training.data.partition import (
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
from agentrl.training.fsdp.process_group import DistSpec, join, leave
from agentrl.training.optim.optimizer import OptimSpec
from agentrl.training.roles.actor import Actor, ActorSpec
from agentrl.training.roles.learner import LearningRole
from agentrl.training.roles.model_info import ModelInfo
from agentrl.training.roles.reference import Reference, ReferenceSpec
from agentrl.training.roles.reward_model import (
    RewardLearner,
    RewardLearnerSpec,
    RewardModel,
    RewardModelSpec,
)

__all__ = [
    "Actor",
    "ActorSpec",
    "DistSpec",
    "Layout",
    "LearningRole",
    "ModelInfo",
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
