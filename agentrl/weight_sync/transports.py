"""Transports: the sender that an engine's traits ask for."""

from __future__ import annotations

from agentrl.engines import Transport, WeightSender
from agentrl.weight_sync.broadcast import BroadcastSender
from agentrl.weight_sync.disk import DiskSender
from agentrl.weight_sync.http import HttpSender


def make_sender(transport: Transport | None) -> WeightSender | None:
    """The sender of a transport; None where weights are put in this process."""
    if transport is None:
        return None
    if transport.name == "disk":
        return DiskSender()
    if transport.name == "http":
        return HttpSender()
    return BroadcastSender("nccl" if transport.device == "cuda" else "gloo", transport.address)
