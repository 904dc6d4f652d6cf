"""Group root: rank 0 of process groups whose other ranks are those of servers, in the process that
sends them weights.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    ProcessGroup,
    _new_process_group_helper,
    _world,
)

from agentrl.engines.checksum import tensor_checksum
from agentrl.errors import EngineError, StaleWeightsError

GroupBackend: TypeAlias = Literal["gloo", "nccl"]

_POLL_S = 0.002
_CONNECT = timedelta(seconds=10)
"""In which this machine must find itself under the address that servers are told."""


@dataclass(eq=False, slots=True)
class _Group:
    """A process group, and what it was started with last: to join it, or to send."""

    device: str
    under_way: Future[Mapping[str, int]]
    process_group: ProcessGroup | None = None
    is_left: bool = False

    def join(self, make: Callable[[], ProcessGroup]) -> Mapping[str, int]:
        """Returns once all ranks have joined."""
        self.process_group = make()
        return {}

    def broadcast(self, tensors: Iterable[tuple[str, Tensor]]) -> Mapping[str, int]:
        """Sends tensors one by one; their checksums."""
        assert self.process_group is not None
        options = dist.BroadcastOptions()
        options.rootRank = 0
        checksums = {}
        for name, tensor in tensors:
            checksums[name] = tensor_checksum(name, tensor)
            work = self.process_group.broadcast([tensor.to(self.device)], options)
            while not work.is_completed():
                # A server that refused would leave this side waiting for ever.
                if self.is_left:
                    return {}
                time.sleep(_POLL_S)
            work.wait()
        return checksums


class GroupRoot:
    """Sends to servers. No call waits for them: ``ended`` says whether what one began is done.

    Args:
        address: of this machine, where none is asked for.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._groups: dict[str, _Group] = {}

    def __call__(self, method: str, *args: Any) -> Any:
        """Calls a method by its name, as other processes do."""
        return getattr(self, method)(*args)

    def open(
        self,
        name: str,
        world_size: int,
        backend: GroupBackend,
        timeout_s: float,
        address: str | None,
    ) -> tuple[str, int]:
        """Begins to join a new group.

        Args:
            name: of no other group.
            world_size: of this process and all ranks of the servers.
            backend: ``nccl`` where all of them have a GPU each.
            timeout_s: until all have joined, and of a broadcast.
            address: of this machine, as servers reach it.

        Returns:
            Where they join. This process listens there from the port's choice on.

        Raises:
            EngineError: this machine has no such address.
        """
        host = address or self._address
        try:
            # Its constructor may not wait for servers, which are asked to join only later.
            store = TCPStore(
                host, 0, is_master=True, timeout=_CONNECT, wait_for_workers=False
            )
        except RuntimeError as error:
            raise EngineError(
                f"broadcast_address='{host}' must be an address of {socket.gethostname()}, which "
                "sends the weights, and it does not reach itself there; correct it, or leave it "
                "out for the one by which Ray knows the machine",
                retryable=False,
            ) from error
        timeout = timedelta(seconds=timeout_s)
        store.set_timeout(timeout)
        group = _Group("cuda" if backend == "nccl" else "cpu", Future())
        self._groups[name] = group
        group.under_way = _in_background(
            lambda: group.join(lambda: _join(name, store, world_size, backend, timeout))
        )
        return host, store.port

    def send(self, name: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Begins to broadcast whole tensors, one after the other."""
        group = self._groups[name]
        group.under_way = _in_background(lambda: group.broadcast(tensors))

    def ended(self, name: str) -> Mapping[str, int] | None:
        """Checksums of what was sent, once what was started last has ended.

        Raises:
            EngineError: it broke off.
            StaleWeightsError: the ranks serve newer weights by now.
        """
        under_way = self._groups[name].under_way
        return under_way.result() if under_way.done() else None

    def leave(self, name: str) -> None:
        """Leaves a group; what goes on there is not waited for."""
        group = self._groups.pop(name, None)
        if group is None:
            return
        group.is_left = True
        # One that is broken may not come to an end. Leaving the default group ends all others.
        done = group.under_way.done()
        failure = group.under_way.exception() if done else None
        sound = done and (failure is None or isinstance(failure, StaleWeightsError))
        if sound and group.process_group in _world.pg_map:
            dist.destroy_process_group(group.process_group)
            # The traceback of a failure holds the group, and servers wait while it has connections.
            group.process_group = None

    def close(self) -> None:
        """Leaves all groups."""
        for name in list(self._groups):
            self.leave(name)


def _in_background(work: Callable[[], Mapping[str, int]]) -> Future[Mapping[str, int]]:
    """A join without the others lasts until the group's timeout, and nobody needs its end. The
    thread is a daemon, since one of an executor would keep the process from ending for so long."""
    future: Future[Mapping[str, int]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except RuntimeError as error:
            # how gloo and NCCL say that a rank is gone, and why
            future.set_exception(EngineError(" ".join(str(error).split())))
        except BaseException as error:  # noqa: BLE001 - boundary: handed to who waits
            future.set_exception(error)

    threading.Thread(target=run, name="agentrl-group", daemon=True).start()
    return future


def _join(
    name: str, store: TCPStore, world_size: int, backend: GroupBackend, timeout: timedelta
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
