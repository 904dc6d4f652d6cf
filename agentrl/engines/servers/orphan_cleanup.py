"""Reaping: ends servers whose owner is dead, and removes their temporary folders.

Needed only where owner and supervisor were killed together, or a supervisor was stopped. A server
is known by the marker that its processes inherit, and by their sessions.
:mod:`agentrl.sandbox.owner_id` finds what is left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from agentrl.engines.servers import supervise
from agentrl.engines.servers.process import FOLDER_PREFIX
from agentrl.sandbox.owner_id import left_after, orphaned, orphaned_folders

_GRACE_S = 6.0
"""For supervisors that are ending their server."""


def reap_servers() -> list[str]:
    """Ends servers of dead owners; what was removed, one line each."""
    if sys.platform != "linux":
        return []
    servers, _ = left_after(
        _GRACE_S, lambda: (orphaned(_markers()), orphaned_folders(FOLDER_PREFIX))
    )
    removed = []
    for marker, owner in servers.items():
        number = len(supervise.server_processes(marker))
        supervise.end_server(marker)
        removed.append(f"server of owner {owner}, {number} processes")
    # of those that left no process
    for folder, owner in orphaned_folders(FOLDER_PREFIX).items():
        supervise.remove_leftovers(folder)
        removed.append(f"folder {folder} of owner {owner}")
    return removed


def _markers() -> Iterator[tuple[str, str]]:
    """Markers of the servers of which a process lives, and what names their owner."""
    for marker in map(supervise.marker_of, supervise.processes()):
        if marker:
            yield marker, marker.partition("/")[0]
