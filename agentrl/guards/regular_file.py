"""Regular file: opens what is one, and nothing that waits, never ends or lies elsewhere.

A folder of a stranger's may hold a link to a file of ours, a FIFO that nobody writes to, or
``/dev/zero`` by another name. Each is a :class:`NotRegularError`, at once.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotRegularError(OSError):
    """What a name leads to is no regular file."""

    def __str__(self) -> str:
        return str(self.strerror)


def check_regular(path: Path, *, follow: bool = False) -> os.stat_result:
    """The state of a regular file, for what opens it by its name.

    Args:
        path: its name.
        follow: whether it may be a link to one.

    Raises:
        FileNotFoundError: there is none.
        NotRegularError: it is something else.
    """
    return _checked(os.stat(path, follow_symlinks=follow), path)


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """A regular file, open for reading.

    Args:
        path: its name.
        follow: whether it may be a link to one.

    Raises:
        FileNotFoundError: there is none.
        NotRegularError: it is something else.
    """
    return open(descriptor(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)), "rb")


def read_regular(path: Path, *, max_bytes: int = 64 * 2**20, follow: bool = False) -> bytes:
    """The bytes of a regular file.

    Raises:
        FileNotFoundError: there is none.
        NotRegularError: it is something else.
        OSError: it has more than ``max_bytes``.
    """
    with open_regular(path, follow=follow) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return data


def descriptor(path: Path | str, flags: int, *, folder: int | None = None) -> int:
    """The descriptor of a regular file; the caller closes it.

    Args:
        path: its name.
        flags: as ``os.open`` takes them. A FIFO without a writer holds nobody up.
        folder: the descriptor of the folder that ``path`` starts from.

    Raises:
        NotRegularError: it is something else.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC
    try:
        found = os.open(path, flags, 0o666, dir_fd=folder)
    except OSError as error:
        # ELOOP: a link; ENXIO: a socket, or a FIFO to write to that nobody reads.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            _checked(os.lstat(path, dir_fd=folder), path)
        raise
    try:
        _checked(os.fstat(found), path)
    except NotRegularError:
        os.close(found)
        raise
    return found


def _checked(found: os.stat_result, path: Path | str) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise NotRegularError(
            errno.EINVAL, f"it is {kind}, and a file is needed", str(path)
        )
    return found
