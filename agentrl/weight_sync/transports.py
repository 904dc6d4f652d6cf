"""Transports: the sender that an engine's traits ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agentrl.engines import Served, Transport, WeightSender
from agentrl.engines.base import TransportName
from agentrl.weight_sync.batches import BatchSender
from agentrl.weight_sync.broadcast import BroadcastSender
from agentrl.weight_sync.disk import DiskSender
from agentrl.weight_sync.group_root import GroupBackend
from agentrl.weight_sync.http import HttpSender
from agentrl.weight_sync.served_copy import ServedWeights
from agentrl.weight_sync.shard_memory import ShardSender
from agentrl.weight_sync.shared_memory import SharedMemorySender

_SENDERS: Mapping[TransportName, type[BatchSender]] = {
    "disk": DiskSender,
    "http": HttpSender,
}


def make_sender(
    transport: Transport | None,
    served: Served | None = None,
    elsewhere: Callable[[], ServedWeights | None] = lambda: None,
    ranks: Sequence[int] = (),
    device: str = "cpu",
) -> WeightSender | None:
    """The sender of a transport; None where weights are put in this process.

    Args:
        transport: of an engine.
        served: where a server that was started again gets its weights.
        elsewhere: see ``BroadcastSender``.
        ranks: that have the servers together; see ``ShardSender``.
        device: ``cuda`` where the servers have this process's GPU in turn with it.
    """
    if transport is None:
        return None
    if transport.name == "broadcast":
        backend: GroupBackend = "nccl" if transport.device == "cuda" else "gloo"
        return BroadcastSender(backend, transport.address, served, elsewhere)
    if transport.name == "shared_memory":
        if len(ranks) > 1:
            return ShardSender(ranks, served, device)
        return SharedMemorySender(served, device)
    return _SENDERS[transport.name](served)
