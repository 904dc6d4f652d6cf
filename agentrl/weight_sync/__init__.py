"""How the trainer's weights reach the engines: into one in this process, or to servers in one of three ways."""

from __future__ import annotations

from agentrl.engines.sglang import ServedDtype
from agentrl.weight_sync.broadcast import GroupSender
from agentrl.weight_sync.disk import FolderSender
from agentrl.weight_sync.http import BucketSender
from agentrl.weight_sync.in_process import (
    TrainerWeights,
    WeightsReport,
    publish_in_process,
    update_engine,
)
from agentrl.weight_sync.tensor_bytes import to_array, to_tensor

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
