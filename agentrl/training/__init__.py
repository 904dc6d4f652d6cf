"""Training: roles that learn, and the partition of a batch over their ranks.

Names are imported when they are asked for, so that ``training.optim.optim_spec`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from agentrl.training.optim.optim_spec import OptimSpec
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

_HOMES = {
    "data.partition": (
        "Layout",
        "Plan",
        "ShardPlan",
        "merge_columns",
        "partition",
        "partition_groups",
        "repack",
        "sample_weights",
        "shards",
        "union",
    ),
    "fsdp.process_group": ("DistSpec", "join", "leave"),
    "optim.optim_spec": ("OptimSpec",),
    "roles.actor": ("Actor", "ActorSpec"),
    "roles.learner": ("LearningRole",),
    "roles.model_info": ("ModelInfo",),
    "roles.reference": ("Reference", "ReferenceSpec"),
    "roles.reward_model": (
        "RewardLearner",
        "RewardLearnerSpec",
        "RewardModel",
        "RewardModelSpec",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
