"""Shard memory: of the ranks that have a server together, each writes its own part of the weights
into memory that the server sees, and the server reads all of them.

No rank ever has more of the model than its part of what is served, and a bucket. All ranks of the
process group take part in each bucket, so that those of all servers go on at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.engines import Served, ServedDtype, UpdateSession
from agentrl.engines.checksum import checksum_of
from agentrl.engines.servers.client import NamedTensors, ServerClient
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.tensor_parallel import Shards, ShardTensor
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.errors import EngineError
from agentrl.training import WeightPart
from agentrl.weight_sync import batches
from agentrl.weight_sync.shared_memory import SharedMemorySender, pickled


class ShardSender(SharedMemorySender):
    """``WeightSender`` of a rank that has a server together with others.

    Args:
        ranks: that have the server, in the order of its tensor-parallel ranks; the first owns it.
        served, device: see ``SharedMemorySender``.
    """

    def __init__(
        self, ranks: Sequence[int], served: Served | None = None, device: str = "cpu"
    ) -> None:
        super().__init__(served, device)
        self.ranks = tuple(ranks)
        self.num_writers = len(ranks)
        self._shards: Shards | None = None

    def shards(
        self, clients: Sequence[ServerClient], shapes: Mapping[str, tuple[int, ...]]
    ) -> Shards:
        """See ``WeightSender.shards``. They stay as they were told first, whatever servers are left
        for an update: the other ranks know nothing of that."""
        if self._shards is None:
            self._shards = super().shards(clients, shapes)
        return self._shards

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session of this rank's part, where each of them is sent its own alone."""
        shards = self.shards([server.client for server in update.servers], update.shapes)
        if len(shards) != len(self.ranks):
            # the owner alone writes, whole tensors
            self.num_writers = 1
            return super().begin(update)
        return ShardSession(self, shards[0], update.dtype, update)

    def catch_up(self, update: ServerUpdate) -> None:
        """See ``WeightSender.catch_up``: the owner alone, since the other ranks train meanwhile."""
        SharedMemorySender(self._served).catch_up(update)


class ShardSession:
    """An ``UpdateSession`` of one rank's part; every rank puts its own in the same order.
    Collective.

    Args:
        sender: whose memory holds this rank's bucket.
        tensors: what the rank of the server holds for which this one writes.
        dtype: as served.
        update: of the servers; None on a rank that owns none.
    """

    def __init__(
        self,
        sender: ShardSender,
        tensors: Sequence[ShardTensor],
        dtype: ServedDtype,
        update: ServerUpdate | None = None,
    ) -> None:
        self._sender = sender
        self._update = update
        self._dtype = dtype
        self._blocks = {part.name: part for tensor in tensors for part in tensor.parts}
        self._sums: dict[TensorSlice, Tensor] = {}
        # Together they have as much memory as one sender of whole tensors.
        room = batches.BATCH_BYTES // len(sender.ranks)
        own = (tuple(tensors),)
        self._batch = batches.Batch(own, dtype, sender.memory, room, self._send)

    def put(self, name: str, tensor: Tensor) -> None:
        """The block of a tensor that this rank writes."""
        block = self._blocks[name]
        if self._update is not None:
            self._update.accept(name, block.shape)
        part = WeightPart(name, block.shape, block.first, tensor)
        self._sums[block] = part.sums().cpu()
        self._batch.put(part)

    def commit(self) -> None:
        """See ``UpdateSession.commit``."""
        sums = _of_all_ranks(self._sums)
        update = self._update
        try:
            if update is not None:
                update.require_complete()
                own = [sums[rank] for rank in self._sender.ranks]
                update.checksums |= written_checksums(own, self._dtype)
            self._batch.end()
        except BaseException:
            self.abort()
            raise
        self._sender.ended()
        if update is not None:
            update.finish()

    def abort(self) -> None:
        """See ``UpdateSession.abort``."""
        self._sender.ended()
        if self._update is not None:
            self._update.give_up()

    def _send(self, by_rank: Sequence[NamedTensors], last: bool) -> None:
        """Hands a bucket of all ranks over; the servers have read it when this returns."""
        [own] = by_rank
        told = _of_all_ranks(pickled(own))
        update = self._update
        if update is not None:
            new = update.new if last else None
            self._sender.hand_over(update, [told[rank] for rank in self._sender.ranks], new)
        # A rank may write the next bucket when all servers have read this one.
        dist.barrier()


def written_checksums(
    by_rank: Sequence[Mapping[TensorSlice, Tensor]], dtype: ServedDtype
) -> dict[str, int]:
    """Checksums of tensors by their names.

    Args:
        by_rank: ``shard_sums`` of the blocks that each rank wrote; a block of several counts once.
        dtype: of them.

    Raises:
        EngineError: two ranks wrote the same block, and not the same bits.
    """
    blocks: dict[TensorSlice, Tensor] = {}
    for block, sums in (one for own in by_rank for one in own.items()):
        if not torch.equal(blocks.setdefault(block, sums), sums):
            raise EngineError(
                f"ranks wrote {block.name!r} with other bits than each other; publish again",
                retryable=False,
            )
    totals: dict[tuple[str, tuple[int, ...]], Tensor] = {}
    for block, sums in blocks.items():
        whole = block.name, block.shape
        totals[whole] = totals.get(whole, 0) + sums
    return {
        name: checksum_of(name, shape, getattr(torch, dtype), sums.tolist())
        for (name, shape), sums in totals.items()
    }


def _of_all_ranks(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
