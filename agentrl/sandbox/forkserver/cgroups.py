"""Memory cgroups: one for the runs of each sandbox, where this process may make them.

The kernel then bounds everything that a run makes, also what shows in no process: what it has in
pipes and sockets, and the files of a disk in memory. Version 1 lets any cgroup that can be written
to have children with a limit. Version 2 wants a node whose children have the memory controller: a
delegated one above this process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.sandbox.host.proc import rounds
from agentrl.sandbox.owner_id import Owner, orphaned, owner_part

# of a cgroup's name, before its owner
_PREFIX = "agentrl-sandbox-"
# by version: the limit, the counts of kills and of reached limits, and what forbids swap
_FILES = {
    1: (
        "memory.limit_in_bytes",
        "memory.oom_control",
        "memory.failcnt",
        "memory.swappiness",
    ),
    2: ("memory.max", "memory.events", "memory.events", "memory.swap.max"),
}
# in which the processes of a sandbox that has ended leave its cgroup
_EMPTY_S = 2.0


@dataclass(frozen=True, slots=True)
class Node:
    """A cgroup that may have children with a memory limit.

    Attributes:
        path: its folder.
        version: of cgroups, 1 or 2.
    """

    path: str
    version: int


@functools.cache
def find_node() -> Node | None:
    """Where this process can make memory cgroups; None where it cannot. Found by trying."""
    try:
        candidates = list(candidate_nodes())
    # no /proc
    except OSError:
        return None
    return next(filter(_is_usable, candidates), None)


def _is_usable(node: Node) -> bool:
    try:
        _remove_orphans(node)
        cgroup = Cgroup(node)
        try:
            with subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            ) as cat:
                # a process can be moved into it
                os.write(cgroup.files[0], str(cat.pid).encode())
        finally:
            cgroup.remove()
    except OSError:
        return False
    return True


def candidate_nodes(proc: str = "/proc/self") -> Iterator[Node]:
    """Where memory cgroups could be made by what ``proc`` says, the best first.

    Raises:
        OSError: it says nothing.
    """
    for node in _own_nodes(proc):
        if node.version == 1:
            yield node
            continue
        # the nearest whose children are bounded
        with (
            contextlib.suppress(OSError),
            open(f"{node.path}/cgroup.subtree_control") as file,
        ):
            if "memory" in file.read().split():
                yield node


def open_kill_count(proc: str = "/proc/self") -> tuple[int, ...]:
    """A descriptor of the count of processes that the kernel killed in the memory cgroup of this
    process; where none has a count, of those of the machine. Empty where there is neither.
    """
    counts = [_FILES[1][1], "memory.events.local", "memory.events"]
    try:
        paths = [f"{node.path}/{count}" for node in _own_nodes(proc) for count in counts]
    # no /proc
    except OSError:
        return ()
    for path in (*paths, "/proc/vmstat"):
        # Which of them there are depends on the version of cgroups and the kernel: the first one
        # counts.
        with contextlib.suppress(OSError):
            return (os.open(path, os.O_RDONLY | os.O_CLOEXEC),)
    return ()


def _own_nodes(proc: str) -> Iterator[Node]:
    """The cgroups that this process is in: of version 2 also those above, the nearest first."""
    with open(f"{proc}/cgroup") as file:
        own = [line.rstrip("\n").split(":", 2) for line in file]
    for kind, root, place, options in _mounts(proc):
        if kind == "cgroup" and "memory" in options:
            paths = (
                path for _, controllers, path in own if "memory" in controllers.split(",")
            )
            yield from (Node(_seen(path, root, place), 1) for path in paths)
        elif kind == "cgroup2":
            node = _seen(
                next((path for number, _, path in own if number == "0"), root), root, place
            )
            while node.startswith(place):
                yield Node(node, 2)
                node = os.path.dirname(node)


def _mounts(proc: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Kind, root, place and options of each mounted file system."""
    with open(f"{proc}/mountinfo") as file:
        for line in file:
            here, _, there = line.partition(" - ")
            fields = here.split()
            (kind, _, options) = there.split(maxsplit=2)
            yield kind, fields[3], fields[4], options.strip().split(",")


def _seen(path: str, root: str, place: str) -> str:
    """Where a cgroup is found below its mount, which may show a part of the hierarchy only."""
    return os.path.normpath(f"{place}/{os.path.relpath(path, root)}")


class Cgroup:
    """One memory cgroup, made below a node.

    Raises:
        OSError: the kernel refused.

    Attributes:
        files: descriptors of what its sandbox writes to and reads: the processes in it, its limit,
            its counts of kills and of reached limits.
    """

    def __init__(self, node: Node) -> None:
        path = self._path = f"{node.path}/{_PREFIX}{Owner.current()}-{os.urandom(4).hex()}"
        os.mkdir(path)
        self.files: tuple[int, ...] = ()
        limit, kills, hits, swap = _FILES[node.version]
        try:
            for name, flags in (
                ("cgroup.procs", os.O_WRONLY),
                (limit, os.O_WRONLY),
                (kills, os.O_RDONLY),
                (hits, os.O_RDONLY),
            ):
                self.files += (os.open(f"{path}/{name}", flags | os.O_CLOEXEC),)
            # version 2 names it where there is swap
            with contextlib.suppress(FileNotFoundError):
                Path(path, swap).write_text("0")
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Take it away; its last processes may be leaving meanwhile. What stays is removed by a
        later owner.
        """
        for fd in self.files:
            os.close(fd)
        self.files = ()
        for _ in rounds(_EMPTY_S, 0.01):
            try:
                os.rmdir(self._path)
            except FileNotFoundError:
                return
            except OSError:
                continue
            return


class CgroupPool:
    """The cgroups of one host's sandboxes: those that ended leave theirs to the next."""

    def __init__(self) -> None:
        self._node = find_node()
        self._kill_count = open_kill_count()
        self._idle: list[Cgroup] = []
        self._lent: dict[int, Cgroup] = {}

    def lend(self, number: int) -> tuple[int, ...]:
        """The descriptors of a cgroup for sandbox ``number``; where none can be made, of the count
        of kills in this process's, if there is one.
        """
        if self._node is None:
            return self._kill_count
        try:
            cgroup = self._idle.pop() if self._idle else Cgroup(self._node)
        # the machine's number of cgroups is bounded too; the rlimits and the watch remain
        except OSError:
            return self._kill_count
        self._lent[number] = cgroup
        return cgroup.files

    def take_back(self, number: int) -> None:
        """Sandbox ``number`` has ended."""
        if (cgroup := self._lent.pop(number, None)) is not None:
            self._idle.append(cgroup)

    def close(self) -> None:
        """Remove all of them: the host has ended."""
        for cgroup in (*self._idle, *self._lent.values()):
            cgroup.remove()
        self._idle = []
        self._lent = {}
        for fd in self._kill_count:
            os.close(fd)
        self._kill_count = ()


def remove_orphaned_cgroups() -> list[str]:
    """Remove what dead owners left; one line each."""
    node = find_node()
    return [] if node is None else _remove_orphans(node)


def _remove_orphans(node: Node) -> list[str]:
    with os.scandir(node.path) as entries:
        named = [(entry.path, owner_part(entry.name, _PREFIX)) for entry in entries]
    removed = []
    for path, owner in orphaned(named).items():
        # another removes it too, or its processes are on their way out
        with contextlib.suppress(OSError):
            os.rmdir(path)
            removed.append(f"cgroup {path} of owner {owner}")
    return removed
