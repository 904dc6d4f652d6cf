"""Weights by broadcast: a process group of the trainer (rank 0) and every rank of every server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    ProcessGroup,
    _new_process_group_helper,
    _world,
)

from agentrl.engines import Served
from agentrl.engines.servers.client import NewVersion
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import WeightArray
from agentrl.errors import EngineError
from agentrl.weight_sync.batches import BatchSender, BatchSession

_POLL_S = 0.002
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Group:
    """A process group, and the servers in it."""

    name: str
    members: tuple[str, ...]
    process_group: ProcessGroup


class BroadcastSender(BatchSender):
    """``WeightSender`` over gloo (CPU) or NCCL (GPU).

    The group is kept between updates, and made again where the servers that take part are others
    than before.

    Args:
        backend: ``nccl`` where trainer and servers have GPUs.
        address: of this machine, as the servers reach it.
        served: see ``BatchSender``.
    """

    def __init__(
        self,
        backend: Literal["gloo", "nccl"] = "gloo",
        address: str = "127.0.0.1",
        served: Served | None = None,
    ) -> None:
        super().__init__(served)
        self.group: _Group | None = None
        self.device = "cuda" if backend == "nccl" else "cpu"
        self._backend = backend
        self._address = address

    def begin(self, update: ServerUpdate) -> BatchSession:
        """A session that broadcasts.

        Raises:
            EngineError: a server did not join.
        """
        if self.group is None or self.group.members != update.member_ids:
            # Forgotten before it is left: a group that some have left serves nobody.
            stale = self.group
            self.group = None
            update.on_all(lambda client, _: client.leave_groups())
            if stale is not None:
                dist.destroy_process_group(stale.process_group)
            self.group = self._open(update)
        return super().begin(update)

    def close(self) -> None:
        """Leaves the group."""
        super().close()
        group = self.group
        self.group = None
        # leaving the default group ends all others
        if group is not None and group.process_group in _world.pg_map:
            dist.destroy_process_group(group.process_group)

    def _open(self, update: ServerUpdate) -> _Group:
        """Joins with all servers at once; a server that refuses ends the wait for the others."""
        name = f"agentrl-{next(_numbers)}-{update.new.label}"
        timeout = timedelta(seconds=update.timeout_s)
        # Its constructor may not wait for servers, which are asked to join only below.
        store = TCPStore(self._address, 0, is_master=True, timeout=timeout, wait_for_workers=False)
        ranks = list(
            itertools.accumulate((server.client.num_ranks for server in update.servers), initial=1)
        )
        joining = update.start(
            lambda client, place: client.join_group(
                name,
                host=self._address,
                port=store.port,
                rank=ranks[place],
                world_size=ranks[-1],
                backend=self._backend,
            )
        )
        own = _in_background(lambda: _join(name, store, ranks[-1], self._backend, timeout))
        try:
            while not (own.done() and joining.done()):
                if joining.done() and (joining.exception() is not None or update.lost_any):
                    update.wait(joining)
                    raise EngineError(
                        f"a server was lost while it joined the group {name!r}; publish again"
                    )
                time.sleep(_POLL_S)
            update.wait(joining)
            return _Group(name, update.member_ids, own.result())
        except RuntimeError as error:
            # of gloo or NCCL
            raise EngineError(f"the group {name!r} could not be joined: {error}") from error

    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[Sequence[WeightArray]],
        new: NewVersion | None,
    ) -> None:
        """See ``BatchSender.send``: announces tensors, then broadcasts them one by one. A group
        that lost a rank is broken for all of its ranks."""
        group = self.group
        if group is None or not update.num_live:
            return
        [batch] = by_rank
        update.pause_servers()
        receiving = update.start(lambda client, _: client.receive(group.name, batch, new))
        fault = self._broadcast(update, group, batch, receiving)
        if not fault:
            update.wait(receiving)
            return
        # never used again, nor waited for
        self.group = None
        if receiving.done():
            # a server that refused says why
            update.wait(receiving)
        update.lose_all(f"the broadcast of the weights broke off: {fault}")

    def _broadcast(
        self,
        update: ServerUpdate,
        group: _Group,
        batch: Sequence[WeightArray],
        receiving: Future[None],
    ) -> str:
        """Why not all tensors went out; empty where they did. A server that refused or died would
        leave this side waiting for ever. One that has all of them may say so before this side knows
        that the last is out."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        for array in batch:
            try:
                own = torch.from_numpy(array.data).view(getattr(torch, array.dtype))
                tensor = own.view(array.shape).to(self.device)
                work = group.process_group.broadcast([tensor], options)
                while not work.is_completed():
                    if update.lost_any or (receiving.done() and receiving.exception() is not None):
                        return "a server took no part any more"
                    time.sleep(_POLL_S)
                work.wait()
            except RuntimeError as error:
                # how gloo and NCCL say that a rank is gone, and why
                return " ".join(str(error).split())
        return ""


def _in_background(work: Callable[[], ProcessGroup]) -> Future[ProcessGroup]:
    """A join without the others lasts until the group's timeout, and nobody needs its end. The
    thread is a daemon, since one of an executor would keep the process from ending for so long."""
    future: Future[ProcessGroup] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - boundary: handed to who waits
            future.set_exception(error)

    threading.Thread(target=run, name="agentrl-join-group", daemon=True).start()
    return future


def _join(
    name: str,
    store: TCPStore,
    world_size: int,
    backend: Literal["gloo", "nccl"],
    timeout: timedelta,
) -> ProcessGroup:
    """This side of a group beside the default one. SGLang makes its side by the same function of
    torch's, which has no public name; the keys under which the ranks find each other are its
    own."""
    group, _ = _new_process_group_helper(
        world_size,
        0,
        [],
        Backend(backend),
        PrefixStore(name, store),
        group_name=GroupName(name),
        timeout=timeout,
    )
    assert isinstance(group, ProcessGroup)
    # destroy_process_group() asks for it
    _world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group
