"""How the trainer's weights reach the engines: into one in this process, to workers that take them
from the ranks' served copies, or to servers in one of four ways.
"""

from __future__ import annotations

from agentrl.engines import ServedDtype
from agentrl.errors import StaleWeightsError
from agentrl.weight_sync.broadcast import BroadcastSender
from agentrl.weight_sync.changes import PartBits
from agentrl.weight_sync.disk import DiskSender
from agentrl.weight_sync.group_root import GroupRoot
from agentrl.weight_sync.http import HttpSender
from agentrl.weight_sync.in_process import (
    WeightsReport,
    make_resharder,
    publish_in_process,
    update_engine,
)
from agentrl.weight_sync.reshard import Resharder
from agentrl.weight_sync.served_copy import (
    OwnWeights,
    PartReader,
    ServedCopy,
    ServedWeights,
)
from agentrl.weight_sync.shard_memory import ShardSender, ShardSession
from agentrl.weight_sync.shared_memory import SharedMemorySender
from agentrl.weight_sync.transports import make_sender
from agentrl.weight_sync.verify import TrainerReference, trainer_reference

__all__ = [
    "BroadcastSender",
    "DiskSender",
    "GroupRoot",
    "HttpSender",
    "OwnWeights",
    "PartBits",
    "PartReader",
    "Resharder",
    "ServedCopy",
    "ServedDtype",
    "ServedWeights",
    "ShardSender",
    "ShardSession",
    "SharedMemorySender",
    "StaleWeightsError",
    "TrainerReference",
    "WeightsReport",
    "make_resharder",
    "make_sender",
    "publish_in_process",
    "trainer_reference",
    "update_engine",
]
