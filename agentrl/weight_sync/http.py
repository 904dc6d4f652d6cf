"""Weights by tensors in HTTP calls, in the form that the kind of the servers has for them."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.engines.servers.client import NamedTensors, NewVersion
from agentrl.engines.servers.update import ServerUpdate
from agentrl.weight_sync.batches import BatchSender, arrays_of


class HttpSender(BatchSender):
    """``WeightSender`` for servers anywhere: tensors travel in the calls, whole to each rank, which
    cuts its part.
    """

    sends_all = False

    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[NamedTensors],
        new: NewVersion | None,
    ) -> None:
        """See ``BatchSender.send``."""
        update.pause_servers()
        tensors = update.kind.bucket(arrays_of(by_rank[0]))
        update.on_all(lambda client, _: client.load_tensors(tensors, new))
