"""Batches: weights that travel some tensors at a time through memory that is used again, whatever
carries them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from agentrl.engines import Served, ServedDtype, UpdateSession
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.servers.client import (
    NamedTensors,
    NewVersion,
    ServerClient,
    dtype_name,
)
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.tensor_parallel import Shards, ShardTensor
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.engines.weights import WeightArray
from agentrl.errors import EngineError
from agentrl.training import WeightPart

BATCH_BYTES = 256 * 2**20
"""Of tensors in one call; a larger tensor goes alone."""
_ALIGNED = 64
"""Bytes at whose multiples tensors begin."""


class BatchSender(ABC):
    """``WeightSender`` that has memory for one batch.

    Args:
        served: where a server that was started again gets its weights; None where none is started.

    Attributes:
        sends_all: whether servers need tensors that they hold already, too.
    """

    sends_all: ClassVar[bool] = True

    def __init__(self, served: Served | None = None) -> None:
        self._served = served
        self._memory = torch.empty(0, dtype=torch.uint8)

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """See ``WeightSender.begin``."""
        return BatchSession(update, self)

    def shards(
        self, clients: Sequence[ServerClient], shapes: Mapping[str, tuple[int, ...]]
    ) -> Shards:
        """See ``WeightSender.shards``."""
        return ()

    @abstractmethod
    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[NamedTensors],
        new: NewVersion | None,
    ) -> None:
        """Gives all servers some tensors, and returns when they have them.

        Args:
            update: of the servers.
            by_rank: the tensors, in this sender's memory; one entry of whole ones where ``shards``
                gives none.
            new: what servers serve with these tensors; None as long as more follow.
        """

    def catch_up(self, update: ServerUpdate) -> None:
        """See ``WeightSender.catch_up``."""
        if self._served is None:
            raise EngineError(
                "a server that was started again gets the weights served now from where they are "
                "kept, and this engine's sender was built without that; build it with `served`",
                retryable=False,
            )
        session = self.begin(update)
        try:
            for name, tensor in self._served(update.version):
                session.put(name, tensor)
        except BaseException:
            session.abort()
            raise
        session.commit()

    def close(self) -> None:
        """See ``WeightSender.close``."""
        self._memory = torch.empty(0, dtype=torch.uint8)

    def memory(self, size: int) -> Tensor:
        """At least so many bytes as ``[bytes]`` uint8; what was in them before is lost."""
        if len(self._memory) < size:
            self._memory = self.allocate(size)
        return self._memory

    def ended(self) -> None:
        """An update has ended; the KV cache and the trainer want a GPU's memory."""
        if self._memory.is_cuda:
            self._memory = torch.empty(0, dtype=torch.uint8)

    def allocate(self, size: int) -> Tensor:
        """New memory."""
        return torch.empty(size, dtype=torch.uint8)


class BatchSession:
    """An ``UpdateSession`` that gathers tensors up to ``BATCH_BYTES`` and then sends them.

    Args:
        update: of the servers.
        sender: whose memory holds the batch.
    """

    def __init__(self, update: ServerUpdate, sender: BatchSender) -> None:
        self._update = update
        self._sender = sender
        self._dtype: torch.dtype = getattr(torch, update.dtype)
        whole = (
            ShardTensor(name, shape, (TensorSlice.whole(name, shape),))
            for name, shape in update.shapes.items()
        )
        clients = [server.client for server in update.servers]
        shards = sender.shards(clients, update.shapes) or (tuple(whole),)
        self._batch = Batch(shards, update.dtype, sender.memory, BATCH_BYTES, self._send)

    def put(self, name: str, tensor: Tensor) -> None:
        """See ``UpdateSession.put``; the tensor may share memory with a parameter that the next
        step changes."""
        shape = tuple(tensor.shape)
        self._update.accept(name, shape)
        own = tensor.detach().to(self._dtype)
        # Of one without memory, which another process sends, that process tells the checksum.
        self._update.checksums[name] = 0 if own.is_meta else tensor_checksum(name, own)
        changed = self._sender.sends_all or self._update.changes(name)
        self._batch.put(WeightPart(name, shape, (0,) * len(shape), own), changed=changed)

    def commit(self) -> None:
        """See ``UpdateSession.commit``."""
        self._update.require_complete()
        try:
            self._batch.end()
        except BaseException:
            self.abort()
            raise
        self._sender.ended()
        self._update.finish()

    def abort(self) -> None:
        """The engine is corrupt where a batch was sent."""
        self._sender.ended()
        self._update.give_up()

    def _send(self, by_rank: Sequence[NamedTensors], last: bool) -> None:
        self._sender.send(self._update, by_rank, self._update.new if last else None)


@dataclass(eq=False, slots=True)
class _Held:
    """A tensor as a rank of a server holds it.

    Args:
        rank: of the server.
        tensor: what is held.
        missing: names of its parts that were not put yet.
        bytes: where they lie, from the first one on.
        changed: whether a part is another than the server holds.
    """

    rank: int
    tensor: ShardTensor
    missing: set[str]
    bytes: Tensor
    changed: bool = False


class Batch:
    """Puts parts together, in memory that is used again, to what ranks of a server hold.

    Args:
        shards: what each of those ranks holds.
        dtype: as served.
        memory: gives at least so many bytes; what was in them before is lost.
        most_bytes: of a batch; a larger tensor goes alone.
        send: is given the tensors that have all of their parts, by rank, and whether they are the
            last.
    """

    def __init__(
        self,
        shards: Shards,
        dtype: ServedDtype,
        memory: Callable[[int], Tensor],
        most_bytes: int,
        send: Callable[[Sequence[NamedTensors], bool], None],
    ) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._get_memory = memory
        self._most_bytes = most_bytes
        self._send_tensors = send
        self._num_ranks = len(shards)
        self._by_name: dict[str, list[_Held]] = {}
        for rank, tensors in enumerate(shards):
            for tensor in tensors:
                names = {part.name for part in tensor.parts}
                held = _Held(rank, tensor, names, torch.empty(0, dtype=torch.uint8))
                for name in names:
                    self._by_name.setdefault(name, []).append(held)
        sizes = [self._size(tensor) for tensors in shards for tensor in tensors]
        self._memory = memory(max(*sizes, min(sum(sizes), most_bytes)))
        self._gathered: list[_Held] = []
        self._used = 0

    def put(self, part: WeightPart, *, changed: bool = True) -> None:
        """All that the ranks hold of a tensor, or more of it, in the served dtype. One that has not
        changed is sent with those alone that lie in one tensor with it."""
        for held in self._by_name.get(part.name, ()):
            if not len(held.bytes):
                self._reserve(held)
                self._gathered.append(held)
            held.changed |= changed
            _fill(held, part)

    def end(self) -> None:
        """All parts were put."""
        self._send(last=True)

    def _size(self, tensor: ShardTensor) -> int:
        """Bytes of a tensor, up to where the next one begins."""
        return aligned(math.prod(tensor.shape) * self._dtype.itemsize)

    def _reserve(self, held: _Held) -> None:
        """Makes room for a tensor; what is in the way is sent."""
        size = self._size(held.tensor)
        if self._used + size > min(self._most_bytes, len(self._memory)):
            self._send(last=False)
        if self._used + size > len(self._memory):
            # Tensors that wait for parts leave it too little.
            self._move(self._used + size)
        num_bytes = math.prod(held.tensor.shape) * self._dtype.itemsize
        held.bytes = self._memory[self._used : self._used + num_bytes]
        self._used += size

    def _send(self, *, last: bool) -> None:
        """Sends the tensors that have all of their parts."""
        by_rank: list[list[tuple[str, Tensor]]] = [[] for _ in range(self._num_ranks)]
        for held in self._gathered:
            if held.changed and not held.missing:
                own = held.bytes.view(self._dtype).view(held.tensor.shape)
                by_rank[held.rank].append((held.tensor.name, own))
        if last or any(by_rank):
            self._send_tensors(by_rank, last)
        self._gathered = [held for held in self._gathered if held.missing]
        self._move(len(self._memory))

    def _move(self, size: int) -> None:
        """The tensors of the batch to the front of so many bytes."""
        kept = [held.bytes.clone() for held in self._gathered]
        self._memory = self._get_memory(size)
        self._used = 0
        for held, before in zip(self._gathered, kept, strict=True):
            held.bytes = self._memory[self._used :][: len(before)].copy_(before)
            self._used += self._size(held.tensor)


def arrays_of(tensors: NamedTensors) -> list[WeightArray]:
    """Tensors of the host's memory as the bytes that they are."""
    return [
        WeightArray(
            name,
            cast(ServedDtype, dtype_name(tensor)),
            tuple(tensor.shape),
            tensor.reshape(-1).view(torch.uint8).numpy(),
        )
        for name, tensor in tensors
    ]


def aligned(num_bytes: int) -> int:
    """The next place where a tensor may begin."""
    return -(-num_bytes // _ALIGNED) * _ALIGNED


def _fill(held: _Held, given: WeightPart) -> None:
    """Copies what a rank holds of a part to where it does."""
    held.missing.discard(given.name)
    own = held.bytes.view(given.tensor.dtype).view(held.tensor.shape)
    # A fused tensor may have the shape of one of its parts.
    if all(part.size == part.shape == held.tensor.shape for part in held.tensor.parts):
        own.copy_(given.tensor)
        return
    row = 0
    for part in held.tensor.parts:
        if part.name == given.name:
            rows = given.tensor[part.slices_of(given.first)]
            own[row : row + part.size[0]].copy_(rows)
        row += part.size[0]
    # the rows that no token of the vocabulary has
    own[row:].zero_()
