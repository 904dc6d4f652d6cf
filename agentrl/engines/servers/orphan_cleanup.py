"""Reaping: ends servers whose owner is dead, and removes their temporary folders.

Needed only where owner and supervisor were killed together, or a supervisor was stopped. A server
is known by the marker that its processes inherit, and by their sessions; what belongs to a process
that lives, or of which nothing can be known, is left alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

from agentrl.engines.servers import supervise
from agentrl.engines.servers.process import FOLDER_PREFIX
from agentrl.sandbox.owner_id import Owner

_GRACE_S = 6.0
"""For supervisors that are ending their server."""


def reap_servers() -> list[str]:
    """Ends servers of dead owners; what was removed, one line each."""
    if sys.platform != "linux":
        return []
    end = time.monotonic() + _GRACE_S
    while (markers := _orphans()) or _folders():
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    removed = []
    for marker in sorted(markers):
        number = len(supervise.server_processes(marker))
        supervise.end_server(marker)
        removed.append(f"server of owner {marker.partition('/')[0]}, {number} processes")
    for folder, owner in _folders().items():
        # of those that left no process
        supervise.remove_leftovers(str(folder))
        removed.append(f"folder {folder} of owner {owner}")
    return removed


def _orphans() -> set[str]:
    """Markers of servers whose owner is dead and of which a process lives."""
    prefix = f"{supervise.MARKER}=".encode()
    found = {
        word.removeprefix(prefix).decode(errors="replace")
        for pid in supervise.processes()
        for word in supervise.environment(pid)
        if word.startswith(prefix)
    }
    return {marker for marker in found if _dead_owner(marker.partition("/")[0])}


def _folders() -> dict[Path, Owner]:
    """Temporary folders of servers whose owner is dead, and that this user may remove."""
    found = {}
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        owner = _dead_owner(path.name.removeprefix(FOLDER_PREFIX).rpartition("-")[0])
        with contextlib.suppress(OSError):
            ours = os.geteuid() in (0, path.lstat().st_uid) and not path.is_symlink()
            if ours and owner is not None:
                found[path] = owner
    return found


def _dead_owner(text: str) -> Owner | None:
    owner = Owner.parse(text)
    return owner if owner is not None and owner.is_dead else None
