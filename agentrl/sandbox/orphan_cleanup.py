"""Orphan cleanup: removes hosts, processes and folders that dead owners left.

All of it happens only where owner and host were killed together, or a host was stopped.
:mod:`agentrl.sandbox.owner_id` finds what is left.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from .forkserver.cgroups import remove_orphaned_cgroups
from .forkserver.launcher import FOLDER_PREFIX
from .host import files, proc
from .owner_id import is_ours, left_after, orphaned, orphaned_folders

# for hosts that are ending by themselves
_GRACE_S = 2.0


def remove_orphans() -> list[str]:
    """Remove hosts and folders of dead owners, and processes of dead hosts; what was removed, one
    line each.

    Containers are the docker backend's:
    ``agentrl.sandbox.docker.containers.remove_orphaned_containers``.
    """
    if sys.platform != "linux":
        return []
    strays = proc.orphans()
    hosts, folders = left_after(
        _GRACE_S, lambda: (orphaned(_hosts()), orphaned_folders(FOLDER_PREFIX))
    )
    removed = [f"{_ended(pid)} of owner {owner}" for pid, owner in hosts.items()]
    # before the folders: nothing that runs is to meddle with their removal
    if hosts or folders or strays:
        ended, left = proc.end_orphans(_GRACE_S)
        whose = "of a sandbox whose host is dead"
        removed += [f"process {pid} {whose}" for pid in sorted(ended - left)]
        removed += [f"nothing of process {pid} {whose}: it goes on" for pid in sorted(left)]
    removed += [f"{_removed(path)} of owner {owner}" for path, owner in folders.items()]
    return removed + remove_orphaned_cgroups()


def _hosts() -> Iterator[tuple[int, str]]:
    """Pids of supervisors and slots that this user may end, and what names their owner."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        words = proc.read(name, "cmdline").decode(errors="replace").split("\0")
        if proc.HOST_TITLE in words and is_ours(f"/proc/{name}"):
            yield int(name), "".join(words[words.index(proc.HOST_TITLE) + 1 :][:1])


def _ended(pid: int) -> str:
    below = proc.descendants(pid)
    proc.end_together([pid, *below])
    return f"process {pid}" + (f" and {len(below)} below it" if below else "")


def _removed(path: str) -> str:
    try:
        files.remove(path)
    except FileNotFoundError:
        return f"folder {path} (gone meanwhile)"
    except OSError as error:
        return f"folder {path} (not removed: {error.strerror})"
    return f"folder {path}"
