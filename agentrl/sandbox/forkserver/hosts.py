"""Host registry: shares hosts between equal settings, replaces worn ones, ends all at exit."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import threading
from contextlib import ExitStack

from agentrl.sandbox.orphan_cleanup import remove_orphans
from agentrl.sandbox.permits import FifoSemaphore

from .server import ForkServer, HostSettings

logger = logging.getLogger(__name__)
# hosts without a sandbox that are kept for the next one
_MOST_IDLE = 8
# of the others, ended at each start: so many that they become fewer, and no start waits for all
_ENDED_AT_ONCE = 2

# in the order of their last use
_servers: dict[HostSettings, ForkServer] = {}
_executing: dict[HostSettings, FifoSemaphore] = {}
_retired: list[ForkServer] = []
# Guards the three tables and _starting; held for no wait but the first look for orphans.
_lock = threading.Lock()
# Held while a host of these settings starts, so that equal settings share one and no others wait.
_starting: dict[HostSettings, threading.Lock] = {}


def shared_server(settings: HostSettings, bound: HostSettings | None = None) -> ForkServer:
    """This process's host for these settings, started if need be; blocks meanwhile.

    A host that has done ``settings.recycle_after`` runs is replaced; its sandboxes live on in it,
    and it ends after the last of them. What bounds the runs at one time holds over all of them. Of
    the hosts without a sandbox those longest unused end, when another starts.

    Args:
        settings: of the host.
        bound: settings whose bound on runs at one time holds for this host too; None are its own.

    Raises:
        MachineError, ConfigError, SandboxError: as :class:`ForkServer` does.
    """
    with _lock:
        starting = _starting.setdefault(settings, threading.Lock())
    with starting, ExitStack() as ending:
        with _lock:
            server = _servers.pop(settings, None)
            worn = settings.recycle_after or math.inf
            if server is not None and not server.ended and server.num_runs < worn:
                _servers[settings] = server
                return server
            if server is not None:
                _retire(server)
            for unused in _past_use():
                ending.callback(unused.close)
            _remove_orphans_once()
            permits = _executing.setdefault(
                bound or settings, FifoSemaphore(settings.permits)
            )
        ending.close()
        server = ForkServer(settings, executing=permits)
        with _lock:
            _servers[settings] = server
        return server


def close_servers() -> None:
    """End every host of this process; called at its exit."""
    with _lock:
        servers = [*_servers.values(), *_retired]
        _servers.clear()
        _retired.clear()
    for server in servers:
        server.close()


def remove_orphans_and_say() -> None:
    """Remove what dead processes left on this machine, with a line of the log for each."""
    for removed in remove_orphans():
        logger.warning(
            "removed what a dead process left: %s",
            removed,
            extra={"event": "sandbox_orphan_removed"},
        )


_remove_orphans_once = functools.cache(remove_orphans_and_say)


def _retire(server: ForkServer) -> None:
    server.retire()
    _retired.append(server)


def _past_use() -> list[ForkServer]:
    """Hosts to close, which are in no table any more; with the lock held."""
    idle = [settings for settings, server in _servers.items() if not server.slots]
    for settings in idle[:-_MOST_IDLE][:_ENDED_AT_ONCE]:
        _retire(_servers.pop(settings))
    ended = [server for server in _retired if server.ended or not server.slots]
    _retired[:] = [server for server in _retired if server not in ended]
    return ended


def _after_fork_in_child() -> None:
    global _lock
    # another thread of the parent may have held the old one
    _lock = threading.Lock()
    for server in (*_servers.values(), *_retired):
        server.abandon()
    _servers.clear()
    _executing.clear()
    _retired.clear()
    _starting.clear()


atexit.register(close_servers)
# A fork of this process holds the same sockets: two that write to one would mix their frames.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
