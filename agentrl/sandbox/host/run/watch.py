"""Watch: enforces the limits that no rlimit counts over all processes of a run together.

It counts files, files without a name, and bytes that wait in sockets and pipes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import files, proc
from ..files import MAX_DEPTH
from .session import InterpreterSession
from .slot import Slot

_READABLE = 0o500
# that wait to be read at most, the kernel's own bookkeeping included
_SOCKET_BYTES = 2**18
_PIPE_BYTES = 2**16
# descriptors, that every process has room for
_SMALL_TABLE = 64
# of a look during which the code closed a folder
_TRIES = 5


# No error by name: it is the code's doing, and its run is ended for it.
class Uncountable(Exception):  # noqa: N818
    """Folders that the code keeps from being counted; the message says how."""


def folder_usage(roots: Collection[str], max_entries: int) -> tuple[int, int]:
    """``(bytes on disk, entries)`` of folders with all that they hold; stops counting beyond
    ``max_entries``.

    A folder that the code closed is open while it is counted; links are not followed, and hard
    links count once.

    Raises:
        Uncountable: folders are nested deeper than ``MAX_DEPTH``, or closed in every look.
    """
    for _ in range(_TRIES):
        try:
            return _look(roots, max_entries)
        except PermissionError:
            continue
    raise Uncountable("folders that are closed while they are counted")


def _look(roots: Collection[str], max_entries: int) -> tuple[int, int]:
    # which are not the code's
    used = 0
    entries = -len(roots)
    seen: set[int] = set()
    for root in roots:
        for info in _below(root, None, 0):
            if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
                if info.st_ino in seen:
                    continue
                seen.add(info.st_ino)
            used += info.st_blocks * 512
            entries += 1
            if entries > max_entries:
                return used, entries
    return used, entries


def _below(name: str, parent: int | None, depth: int) -> Iterator[os.stat_result]:
    """A folder and its entries, which the code makes, moves and removes meanwhile.

    Raises:
        PermissionError: the code closed the folder again.
    """
    if depth > MAX_DEPTH:
        raise Uncountable(f"folders nested deeper than {MAX_DEPTH}")
    try:
        at = os.open(name, files.PLACE, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            # gone, or another thing by now
            return
        raise
    info = os.fstat(at)
    closed = info.st_mode & _READABLE != _READABLE
    try:
        if closed:
            files.set_mode(at, stat.S_IMODE(info.st_mode) | _READABLE)
        yield info
        with proc.opened(".", files.FOLDER, dir_fd=at) as fd, os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.name, fd, depth + 1)
                else:
                    # The code may remove it while it is listed.
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False)
    finally:
        if closed:
            files.set_mode(at, stat.S_IMODE(info.st_mode))
        os.close(at)


def unlinked_bytes(pids: Iterable[int], device: int) -> int:
    """Bytes on disk of files without a name that these processes hold open."""
    found: dict[int, int] = {}
    for path in _descriptors(pids):
        try:
            info = os.stat(path)
        except OSError:
            continue
        if info.st_nlink == 0 and info.st_dev == device and stat.S_ISREG(info.st_mode):
            found[info.st_ino] = info.st_blocks * 512
    return sum(found.values())


def hides_files(pids: Collection[int]) -> bool:
    """Whether these processes may hold files of which :func:`unlinked_bytes` knows nothing.

    In a socket on the way to another descriptor, in a mapping whose descriptor was closed, or
    behind descriptors that nobody may list.
    """
    for path in _descriptors(pids, strict=True):
        try:
            if not path or (
                stat.S_ISSOCK(os.stat(path).st_mode)
                and _in_flight(path.replace("/fd/", "/fdinfo/"))
            ):
                return True
        except OSError:
            continue
    return any(map(_maps_unlinked, pids))


def _descriptors(pids: Iterable[int], *, strict: bool = False) -> Iterator[str]:
    """Links of proc_pid_fd(5), of every thread, since a thread may have its own; ``""`` where they
    are kept secret.
    """
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            folder = f"/proc/{pid}/task/{thread}/fd"
            try:
                yield from (f"{folder}/{fd}" for fd in os.listdir(folder))
            except PermissionError:
                if strict:
                    yield ""
            except OSError:
                continue


def _in_flight(fdinfo: str) -> bool:
    with open(fdinfo) as file:
        return any(line.startswith("scm_fds:") and int(line.split()[1]) for line in file)


def _maps_unlinked(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            # shared memory without a name reads "/dev/zero (deleted)"
            return any(b" (deleted)" in line and b" /dev/zero" not in line for line in file)
    except PermissionError:
        return True
    except OSError:
        return False


def buffered_bytes(pids: Collection[int], room: int) -> int:
    """Bytes that the kernel may hold for these processes in sockets and pipes, each at its fullest.

    Args:
        pids: the processes.
        room: what may be held; where their descriptors cannot be so many, they are not counted, and
            the answer is 0.
    """
    if sum(map(_most_descriptors, pids)) * _SOCKET_BYTES <= room:
        return 0
    held: set[str] = set()
    hidden = 0
    for pid in pids:
        for path in _descriptors([pid], strict=True):
            if not path:
                hidden += (
                    _most_descriptors(pid) if _most_descriptors(pid) > _SMALL_TABLE else 0
                )
                break
            try:
                held.add(os.readlink(path))
            except OSError:
                continue
    sockets, pipes = (
        sum(link.startswith(kind) for link in held) for kind in ("socket:", "pipe:")
    )
    return (sockets + hidden) * _SOCKET_BYTES + pipes * _PIPE_BYTES


def _most_descriptors(pid: int) -> int:
    """The size of a process's table of descriptors, which grows with need; 0 where it is gone."""
    return proc.number(proc.read(pid, "status"), b"FDSize:")


def written_bytes(pid: int) -> int:
    """Bytes that a process, and the children that it has waited for, gave the file systems to
    write.

    0 where nobody counts.
    """
    return proc.number(proc.read(pid, "io"), b"write_bytes:")


# looks
_FILES_EVERY = 5
# what is reserved, and of a small file system the tenth part
_RESERVE_BYTES = 512 * 2**20
_RESERVE_SHARE = 10
# of its disk limit: a run that wrote as much since its files were counted is not waited for
_EARLY_SHARE = 8
# of its disk limit: a run that wrote as much has its part in a full file system
_BLAMED_SHARE = 4

# a result's status and detail
Verdict = tuple[str, str]


class SpaceShort(Exception):  # noqa: N818
    """The file system of the sandboxes has less than its reserve left, and this run did not fill
    it.
    """


@dataclass
class Watch:
    """Looked through ten times a second while a run goes on.

    Attributes:
        slot: whose children are watched.
        limits: of the run.
        session: the interpreter that does the run, where it keeps its variables.
        looks: how many there were.
        reaped_before: bytes written by what the slot had reaped at the first look.
        written: bytes written, by process.
        counted_at: bytes written when files were last counted.
    """

    slot: Slot
    limits: dict[str, Any]
    session: InterpreterSession | None
    looks: int = 0
    reaped_before: int | None = None
    written: dict[int, int] = field(default_factory=dict)
    counted_at: int = 0

    def look(self) -> Verdict | None:
        """What ends the run, if anything does.

        Raises:
            SpaceShort: as the class says.
        """
        slot = self.slot
        limits = self.limits
        if slot.config.abi is None and sys.platform != "linux":
            return None
        self.looks += 1
        resting = slot.session if self.session is None else None
        # first processes of pid namespaces, which do nothing, and an interpreter that rests
        own = set() if slot.namespaces is None else set(slot.namespaces.firsts.values())
        if resting is not None:
            own.add(resting.pid)
        pids = [pid for pid in proc.descendants(os.getpid()) if pid not in own]
        if len(pids) > limits["processes"]:
            return "killed", f"more than {limits['processes']} processes"
        if slot.memory.is_spent or (len(pids) > 1 and self._passes_memory(pids)):
            return "oom", f"all processes together passed {limits['memory_bytes']} bytes"
        if self.session is not None and limits["cpu_s"] is not None:
            # RLIMIT_CPU counts a process's whole life
            used_s = self.session.used_s()
            if used_s > limits["cpu_s"]:
                return (
                    "timeout",
                    f"used {used_s:.2f} s of processor time; the limit is {limits['cpu_s']:g} s",
                )
        return None if slot.namespaces is not None else self._look_at_files(pids)

    def _passes_memory(self, pids: list[int]) -> bool:
        """Whether what the processes made, and what their sockets and pipes may hold, is more than
        the limit.
        """
        left = self.limits["memory_bytes"] - proc.memory_beyond_own(pids)
        return left < 0 or (self.slot.bound is None and buffered_bytes(pids, left) > left)

    def _look_at_files(self, pids: list[int]) -> Verdict | None:
        max_bytes = self.limits["disk_bytes"]
        max_files = self.limits["max_files"]
        short = ""
        early = False
        if not self.slot.config.bounded:
            short = self._short_of_space()
            written = self._written_bytes(pids)
            early = written - self.counted_at > max_bytes // _EARLY_SHARE
        if self.looks % _FILES_EVERY and not early and not short:
            return None
        try:
            used, entries = folder_usage(self.slot.own_folders, max_files)
        except Uncountable as error:
            return "killed", str(error)
        holders = {*pids, self.slot.resting_pid} - {0}
        used += unlinked_bytes(holders, os.stat(self.slot.work).st_dev)
        if used > max_bytes:
            return "killed", f"{used} bytes in files; the limit is {max_bytes} bytes"
        if entries > max_files:
            return "killed", f"more than {max_files} files"
        if self.slot.config.bounded:
            return None
        self.counted_at = written
        if short and (
            max(used, written) >= max_bytes // _BLAMED_SHARE or hides_files(holders)
        ):
            return "killed", f"{short}, and the code has its part in it"
        if short:
            raise SpaceShort(f"{short}: free some, or lower it")
        return None

    def _short_of_space(self) -> str:
        """What is to be said of a file system that has less left than its reserve; nothing of any
        other.
        """
        held = os.statvfs(self.slot.work)
        free = held.f_bavail * held.f_frsize
        reserve = self.limits["reserve_bytes"]
        if reserve is None:
            reserve = min(_RESERVE_BYTES, held.f_blocks * held.f_frsize // _RESERVE_SHARE)
        if free >= reserve:
            return ""
        left = f"{free} bytes are left where sandboxes keep their files"
        return f"{left}, and Limits.reserve_bytes is {reserve}"

    def _written_bytes(self, pids: list[int]) -> int:
        """By the processes of the run that were seen, or by those that the slot has reaped since
        its first look.
        """
        reaped = written_bytes(os.getpid())
        if self.reaped_before is None:
            self.reaped_before = reaped
        for pid in pids:
            self.written[pid] = max(self.written.get(pid, 0), written_bytes(pid))
        return max(sum(self.written.values()), reaped - self.reaped_before)
