"""Weights by broadcast: a process group of the trainer's rank 0 and every rank of every server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from agentrl.engines import Served, UpdateSession
from agentrl.engines.servers.client import NamedTensors, NewVersion
from agentrl.engines.servers.update import ServerUpdate
from agentrl.errors import EngineError, StaleWeightsError
from agentrl.weight_sync.batches import BatchSender
from agentrl.weight_sync.group_root import GroupBackend, GroupRoot
from agentrl.weight_sync.served_copy import ServedWeights

_LOOK_S = 0.01
_numbers = itertools.count()

Root: TypeAlias = Callable[..., Any]
"""Calls a method of a ``GroupRoot``, by its name, in the process that sends."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A process group, who sends in it, and the servers that are its other ranks."""

    name: str
    root: Root
    members: tuple[str, ...]


class BroadcastSender(BatchSender):
    """``WeightSender`` over gloo (CPU) or NCCL (GPU). Where the ranks that train are in other
    processes, their rank 0 sends: NCCL refuses a process on a server's GPU.

    The group is kept between updates, and made again where the servers that take part are others
    than before.

    Args:
        backend: ``nccl`` where trainer and servers have GPUs.
        address: of the machine that sends, as the servers reach it; by default one that it knows.
        served: see ``BatchSender``.
        elsewhere: what ranks in other processes serve; None where this process has the weights.
    """

    def __init__(
        self,
        backend: GroupBackend = "gloo",
        address: str | None = None,
        served: Served | None = None,
        elsewhere: Callable[[], ServedWeights | None] = lambda: None,
    ) -> None:
        super().__init__(served)
        self.group: _Group | None = None
        self._backend = backend
        self._address = address
        self._elsewhere = elsewhere
        self._own = GroupRoot()

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that broadcasts. Tensors without memory (torch's device ``meta``) are put into
        it where the weights are elsewhere.

        Raises:
            EngineError: a server did not join.
        """
        weights = self._elsewhere()
        if self.group is None or self.group.members != update.member_ids:
            # Forgotten before it is left: a group that some have left serves nobody.
            stale, self.group = self.group, None
            update.on_all(lambda client, _: client.leave_groups())
            if stale is not None:
                stale.root("leave", stale.name)
            self.group = self._open(update, weights.reader.root if weights else self._own)
        return super().begin(update)

    def close(self) -> None:
        """Leaves the groups of this process."""
        super().close()
        self.group = None
        self._own.close()

    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[NamedTensors],
        new: NewVersion | None,
    ) -> None:
        """See ``BatchSender.send``: announces tensors to the servers, and has the root send them. A
        group that lost a rank is broken for all of its ranks."""
        group, weights = self.group, self._elsewhere()
        [batch] = by_rank
        tensors: Iterable[tuple[str, Tensor]] = batch
        if weights:
            names = {name for name, _ in batch}
            tensors = weights.only(names).tensors()
            # Servers that are lost are given these when they come up, and compared then.
            update.checksums |= {name: weights.reference.checksum[name] for name in names}
        if group is None or not update.num_live:
            return
        update.pause_servers()
        receiving = update.start(lambda client, _: client.receive(group.name, batch, new))
        try:
            group.root("send", group.name, tensors)
            update.checksums |= _together(update, group, receiving)
        except EngineError as error:
            # never used again, nor waited for
            self.group = None
            group.root("leave", group.name)
            if isinstance(error, StaleWeightsError):
                # The root has left, and the servers hear of it before anything else is asked.
                receiving.exception()
                raise
            if receiving.done():
                # a server that refused says why
                update.wait(receiving)
            update.lose_all(f"the broadcast of the weights broke off: {error}")
            return
        update.wait(receiving)

    def allocate(self, size: int) -> Tensor:
        """Memory for a batch; none of it is touched where the weights are elsewhere."""
        device = "meta" if self._elsewhere() else "cpu"
        return torch.empty(size, dtype=torch.uint8, device=device)

    def _open(self, update: ServerUpdate, root: Root) -> _Group:
        """Joins with all servers at once; a server that refuses ends the wait for the others."""
        group = _Group(
            f"agentrl-{next(_numbers)}-{update.new.label}", root, update.member_ids
        )
        ranks = list(
            itertools.accumulate(
                (server.client.num_ranks for server in update.servers), initial=1
            )
        )
        how = (ranks[-1], self._backend, update.timeout_s, self._address)
        host, port = root("open", group.name, *how)
        joining = update.start(
            lambda client, place: client.join_group(
                group.name,
                host=host,
                port=port,
                rank=ranks[place],
                world_size=ranks[-1],
                backend=self._backend,
            )
        )
        try:
            _together(update, group, joining)
        except EngineError as error:
            root("leave", group.name)
            if joining.done():
                update.wait(joining)
            raise EngineError(
                f"the group {group.name!r}: {error}; publish again"
            ) from error
        update.wait(joining)
        return group


def _together(
    update: ServerUpdate, group: _Group, theirs: Future[Any]
) -> Mapping[str, int]:
    """Waits until the root has done its part; a server may say that it has all before that.

    Raises:
        EngineError: the root's part broke off, or a server does not do its own.
    """
    sent: Mapping[str, int] | None = None
    while sent is None:
        if update.lost_any or (theirs.done() and theirs.exception() is not None):
            raise EngineError("a server took no part any more")
        time.sleep(_LOOK_S)
        sent = group.root("ended", group.name)
    return sent
