"""Process files: reads proc(5), in which any process may end meanwhile; descriptors; deadlines."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator


def read(pid: int | str, name: str, *, strict: bool = False) -> bytes:
    """A file of a process; empty where it is gone or, unless ``strict``, cannot be read for any
    reason.

    Raises:
        OSError: ``strict``, and the process is there.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""
    except OSError:
        if strict:
            raise
        return b""


def stat(pid: int | str, *, strict: bool = False) -> list[bytes]:
    """Fields of proc_pid_stat(5) from the third on; empty where :func:`read` is."""
    return read(pid, "stat", strict=strict).rpartition(b")")[2].split()


def number(lines: bytes, name: bytes) -> int:
    """The whole number behind the name that begins a line; 0 where no line does."""
    found = (line for line in lines.split(b"\n") if line.startswith(name))
    return next((int(line.split()[1]) for line in found), 0)


def rounds(seconds: float, pause_s: float) -> Iterator[None]:
    """One round after another until the time is over, with a pause before each but the first."""
    end = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() > end:
            return
        time.sleep(pause_s)


@contextlib.contextmanager
def opened(path: str, flags: int, *, dir_fd: int | None = None) -> Iterator[int]:
    """The descriptor of a file or folder, closed at the end of the block; children of exec do not
    get it.

    Raises:
        OSError: it cannot be opened.
    """
    with owned(os.open(path, flags | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        yield fd


@contextlib.contextmanager
def owned(fd: int) -> Iterator[int]:
    """A descriptor that is closed at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)
