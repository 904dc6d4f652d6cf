"""How the trainer's weights reach the engines: into one in this process, or to servers in one of three ways."""

from __future__ import annotations

from agentrl.controller.weights.array import to_array, to_tensor
from agentrl.controller.weights.bucket import BucketSender
from agentrl.controller.weights.folder import FolderSender
from agentrl.controller.weights.in_process import TrainerWeights, WeightsReport, publish_in_process, update_engine
from agentrl.controller.weights.process_group import GroupSender
from agentrl.rollouts.sglang import ServedDtype

__all__ = [
    "BucketSender",
    "FolderSender",
    "GroupSender",
    "ServedDtype",
    "TrainerWeights",
    "WeightsReport",
    "publish_in_process",
    "to_array",
    "to_tensor",
    "update_engine",
]
