"""Orphan cleanup: removes hosts, processes and folders that dead owners left.

All of it happens only where owner and host were killed together, or a host was stopped. What
belongs to a process that lives, or of which nothing can be known, is left alone
(:mod:`agentrl.sandbox.owner_id`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

from .forkserver.cgroups import remove_orphaned_cgroups
from .forkserver.launcher import FOLDER_PREFIX
from .host import proc
from .host.confine import marks
from .host.files import removal
from .host.run import process_tree
from .owner_id import Owner

_GRACE_S = 2.0  # for hosts that are ending by themselves


def remove_orphans() -> list[str]:
    """Remove hosts and folders of dead owners, and processes of dead hosts; what was removed, one
    line each.

    Containers are the docker backend's:
    ``agentrl.sandbox.docker.containers.remove_orphaned_containers``.
    """
    if sys.platform != "linux":
        return []
    strays = marks.orphans()
    for _ in proc.rounds(_GRACE_S, 0.05):
        hosts = dict(_orphaned_hosts())
        folders = dict(_orphaned_folders())
        if not (hosts or folders):
            break
    removed = [f"{_ended(pid)} of owner {owner}" for pid, owner in hosts.items()]
    if (
        hosts or folders or strays
    ):  # before the folders: nothing that runs is to meddle with their removal
        ended, left = marks.end_orphans(_GRACE_S)
        removed += [
            f"process {pid} of a sandbox whose host is dead" for pid in sorted(ended - left)
        ]
        removed += [
            f"nothing of process {pid} of a sandbox whose host is dead: it goes on"
            for pid in sorted(left)
        ]
    removed += [f"{_removed(path)} of owner {owner}" for path, owner in folders.items()]
    return removed + remove_orphaned_cgroups()


def _orphaned_hosts() -> Iterator[tuple[int, Owner]]:
    """Pids of supervisors and slots whose owner is dead, as far as this user may end them."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (owner := _owner_of_host(name)) is not None and owner.is_dead:
            yield int(name), owner


def _owner_of_host(pid: str) -> Owner | None:
    words = proc.read(pid, "cmdline").decode(errors="replace").split("\0")
    if marks.HOST_TITLE not in words or not _is_ours(f"/proc/{pid}"):
        return None
    return Owner.parse("".join(words[words.index(marks.HOST_TITLE) + 1 :][:1]))


def _orphaned_folders() -> Iterator[tuple[str, Owner]]:
    for base in dict.fromkeys(
        ("/tmp", tempfile.gettempdir())
    ):  # the first is a host's, which has no TMPDIR
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                owner = Owner.parse(entry.name.removeprefix(FOLDER_PREFIX).rpartition("-")[0])
                if (
                    owner is not None
                    and owner.is_dead
                    and entry.is_dir(follow_symlinks=False)
                    and _is_ours(entry.path)
                ):
                    yield entry.path, owner


def _is_ours(path: str) -> bool:
    try:
        return os.geteuid() in (0, os.stat(path, follow_symlinks=False).st_uid)
    except OSError:
        return False


def _ended(pid: int) -> str:
    below = process_tree.descendants(pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in (pid, *below):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, number)
    return f"process {pid}" + (f" and {len(below)} below it" if below else "")


def _removed(path: str) -> str:
    try:
        removal.remove(path)
    except FileNotFoundError:
        return f"folder {path} (gone meanwhile)"
    except OSError as error:
        return f"folder {path} (not removed: {error.strerror})"
    return f"folder {path}"
