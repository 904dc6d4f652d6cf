"""Host registry: shares hosts between equal settings, replaces worn ones, ends all at exit."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import threading
import time

from agentrl.sandbox.orphan_cleanup import remove_orphans
from agentrl.sandbox.permits import FifoSemaphore

from .server import ForkServer, HostSettings

logger = logging.getLogger(__name__)
# after which nobody who was given a host has yet to open a sandbox in it
_GRACE_S = 60.0

_servers: dict[HostSettings, ForkServer] = {}
_executing: dict[HostSettings, FifoSemaphore] = {}
_retired: list[ForkServer] = []
# Guards the three tables. It is held while a host starts, so that equal settings share one.
_lock = threading.Lock()


def shared_server(settings: HostSettings) -> ForkServer:
    """This process's host for these settings, started if need be; blocks meanwhile.

    A host that has done ``settings.recycle_after`` runs is replaced; its sandboxes live on in it,
    and it ends after the last of them. What bounds the runs at one time holds over all of them.

    Raises:
        MachineError, ConfigError, SandboxError: as :class:`ForkServer` does.
    """
    with _lock:
        _end_retired()
        server = _servers.get(settings)
        if server is not None and server.ended:
            _servers.pop(settings).close()
        elif server is not None and server.num_runs >= (settings.recycle_after or math.inf):
            server.retired_s = time.monotonic()
            _retired.append(_servers.pop(settings))
        if settings not in _servers:
            _remove_orphans_once()
            permits = _executing.setdefault(settings, FifoSemaphore(settings.permits))
            _servers[settings] = ForkServer(settings, executing=permits)
        return _servers[settings]


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


def _end_retired() -> None:
    oldest = time.monotonic() - _GRACE_S
    for server in list(_retired):
        if server.ended or (not server.slots and server.retired_s < oldest):
            _retired.remove(server)
            server.close()


def _after_fork_in_child() -> None:
    global _lock
    # another thread of the parent may have held the old one
    _lock = threading.Lock()
    for server in (*_servers.values(), *_retired):
        server.abandon()
    _servers.clear()
    _executing.clear()
    _retired.clear()


atexit.register(close_servers)
# A fork of this process holds the same sockets: two that write to one would mix their frames.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
