"""How the trainer's weights reach the engines: into one in this process, or to servers in one of
three ways.
"""

from __future__ import annotations

from agentrl.engines import ServedDtype
from agentrl.weight_sync.broadcast import BroadcastSender
from agentrl.weight_sync.disk import DiskSender
from agentrl.weight_sync.http import HttpSender
from agentrl.weight_sync.in_process import (
    TrainerWeights,
    WeightsReport,
    export_weights,
    publish_in_process,
    update_engine,
)
from agentrl.weight_sync.tensor_bytes import to_tensor
from agentrl.weight_sync.transports import make_sender

__all__ = [
    "BroadcastSender",
    "DiskSender",
    "HttpSender",
    "ServedDtype",
    "TrainerWeights",
    "WeightsReport",
    "export_weights",
    "make_sender",
    "publish_in_process",
    "to_tensor",
    "update_engine",
]
