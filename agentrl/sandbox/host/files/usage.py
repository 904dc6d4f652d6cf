"""Usage: counts files, files without a name, and bytes that wait in sockets and pipes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator

from .. import proc
from . import removal
from .safe_fs import MAX_DEPTH

_READABLE = 0o500
# that wait to be read at most, the kernel's own bookkeeping included
_SOCKET_BYTES = 2**18
_PIPE_BYTES = 2**16
# descriptors, that every process has room for
_SMALL_TABLE = 64
# of a look during which the code closed a folder
_TRIES = 5


class Uncountable(Exception):  # noqa: N818  the code's doing: its run is ended for it
    """Folders that the code keeps from being counted; the message says how."""


def of_folders(roots: Collection[str], max_entries: int) -> tuple[int, int]:
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
        at = os.open(name, removal.PLACE, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            # gone, or another thing by now
            return
        raise
    info = os.fstat(at)
    closed = info.st_mode & _READABLE != _READABLE
    try:
        if closed:
            removal.set_mode(at, stat.S_IMODE(info.st_mode) | _READABLE)
        yield info
        with proc.opened(".", removal.FOLDER, dir_fd=at) as fd, os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _below(entry.name, fd, depth + 1)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False)
    finally:
        if closed:
            removal.set_mode(at, stat.S_IMODE(info.st_mode))
        os.close(at)


def of_unlinked(pids: Iterable[int], device: int) -> int:
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
    """Whether these processes may hold files of which :func:`of_unlinked` knows nothing.

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


def of_buffers(pids: Collection[int], room: int) -> int:
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
                hidden += _most_descriptors(pid) if _most_descriptors(pid) > _SMALL_TABLE else 0
                break
            try:
                held.add(os.readlink(path))
            except OSError:
                continue
    sockets, pipes = (sum(link.startswith(kind) for link in held) for kind in ("socket:", "pipe:"))
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
