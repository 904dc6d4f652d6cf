"""Weights by tensors in HTTP calls, in the form that the kind of the servers has for them."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.engines import UpdateSession
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import WeightArray
from agentrl.weight_sync.plan import BatchSession


class HttpSender:
    """``WeightSender`` for servers anywhere: tensors travel in the calls, whole to each rank, which
    cuts its part.
    """

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that sends buckets."""
        return _HttpSession(update)

    def close(self) -> None:
        """Nothing is kept."""


class _HttpSession(BatchSession):
    def send(self, batch: Sequence[WeightArray], *, label: str | None, flush: bool) -> None:
        self.update.pause_servers()
        payload = self.update.kind.bucket(batch)
        self.update.on_all(lambda client, _: client.load_bucket(payload, label=label, flush=flush))
