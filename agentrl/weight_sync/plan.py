"""Weights that travel in batches of tensors, whatever carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import WeightArray
from agentrl.weight_sync.tensor_bytes import to_array, to_tensor

BATCH_BYTES = 256 * 2**20
"""Of tensors in one call; a larger tensor goes alone."""


class BatchSession(ABC):
    """An ``UpdateSession`` that gathers tensors up to ``BATCH_BYTES`` and then sends them.

    Args:
        update: of the servers.
    """

    def __init__(self, update: ServerUpdate) -> None:
        self.update = update
        self._batch: list[WeightArray] = []

    def put(self, name: str, tensor: Tensor) -> None:
        """See ``UpdateSession.put``."""
        array = to_array(name, tensor, self.update.dtype)
        self.update.accept(array, tensor_checksum(name, to_tensor(array)))
        if (
            self._batch
            and sum(held.data.size for held in self._batch) + array.data.size > BATCH_BYTES
        ):
            self._send_batch(last=False)
        self._batch.append(array)

    def commit(self) -> None:
        """See ``UpdateSession.commit``."""
        self.update.require_complete()
        self._send_batch(last=True)
        self.update.finish()

    def abort(self) -> None:
        """The engine is corrupt where a batch was sent."""
        self.update.give_up()

    def _send_batch(self, *, last: bool) -> None:
        batch = self._batch
        self._batch = []
        label, flush = (self.update.label, self.update.flush) if last else (None, False)
        self.send(batch, label=label, flush=flush)

    @abstractmethod
    def send(self, batch: Sequence[WeightArray], *, label: str | None, flush: bool) -> None:
        """Gives all servers some tensors; the last of them come with the label, and with whether KV
        is flushed.
        """
