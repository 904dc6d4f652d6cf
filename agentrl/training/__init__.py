"""Training: roles that learn, and the partition of a batch over their ranks.

Names are imported when they are asked for, so that ``training.optim.optim_spec`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.training.backends.backend import ModelInfo, TrainBackend
    from agentrl.training.data.partition import (
        Layout,
        Plan,
        ShardPlan,
        merge_columns,
        partition,
        repack,
        sample_weights,
        shards,
        union,
    )
    from agentrl.training.models.packed_model import ModelSpec
    from agentrl.training.optim.optim_spec import OptimSpec
    from agentrl.training.parallel.process_group import DistSpec, join, leave
    from agentrl.training.parallel.shards import WeightPart, whole_checksums
    from agentrl.training.roles.actor import Actor, ActorSpec
    from agentrl.training.roles.check_backend import check_backend
    from agentrl.training.roles.critic import Critic, CriticSpec
    from agentrl.training.roles.learner import LearnerSpec, LearningRole
    from agentrl.training.roles.policy import Reference, ReferenceSpec
    from agentrl.training.roles.reward_model import (
        RewardLearner,
        RewardLearnerSpec,
        RewardModel,
        RewardModelSpec,
    )

__all__ = [
    "Actor",
    "ActorSpec",
    "Critic",
    "CriticSpec",
    "DistSpec",
    "Layout",
    "LearnerSpec",
    "LearningRole",
    "ModelInfo",
    "ModelSpec",
    "OptimSpec",
    "Plan",
    "Reference",
    "ReferenceSpec",
    "RewardLearner",
    "RewardLearnerSpec",
    "RewardModel",
    "RewardModelSpec",
    "ShardPlan",
    "TrainBackend",
    "WeightPart",
    "check_backend",
    "join",
    "leave",
    "merge_columns",
    "partition",
    "repack",
    "sample_weights",
    "shards",
    "union",
    "whole_checksums",
]

_HOMES = (
    "optim.optim_spec",
    "data.partition",
    "parallel.process_group",
    "parallel.shards",
    "models.packed_model",
    "backends.backend",
    "roles.check_backend",
    "roles.learner",
    "roles.actor",
    "roles.critic",
    "roles.policy",
    "roles.reward_model",
)
"""Where the names are; those without torch come first."""


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
