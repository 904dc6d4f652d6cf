"""Disk: files and folders that are replaced whole, locks of names, and failed writes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.errors import DiskFullError, HeldError, StoreError
from agentrl.guards.regular_file import NotRegularError, check_regular

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ALMOST_NOTHING = 2**16
"""Bytes that are left where a file did not fit, below its file system's blocks and reserve."""


@contextmanager
def os_refusals(what: str) -> Iterator[None]:
    """Turns an OSError within into a StoreError: ``what``, and why."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error


@contextmanager
def write_refusals(path: Path, what: str = "cannot be written") -> Iterator[None]:
    """Turns an OSError of writing ``path`` into ``write_failure``: ``what``, and why."""
    try:
        yield
    except OSError as error:
        raise write_failure(f"{path} {what}", path, error) from error


class Stamp(NamedTuple):
    """By which it is known that a file is another one, or was written since."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, state: os.stat_result) -> Stamp:
        return cls(state.st_ino, state.st_size, state.st_mtime_ns)


def stamps_of(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    """The stamps of files by path; None where there is none."""
    found: dict[Path, Stamp | None] = {}
    for path in sorted(paths):
        try:
            found[path] = Stamp.of(path.lstat())
        except FileNotFoundError:
            found[path] = None
    return found


def write_failure(what: str, path: Path, error: BaseException) -> StoreError:
    """The error to raise where something could not be written.

    Args:
        what: what could not be, such as ``the actor's checkpoint could not be written to runs/a``.
        path: where; it need not exist.
        error: the file system's own error, or a library's that swallowed it.

    Returns:
        ``DiskFullError`` where the disk, or a quota on it, is full.
    """
    folder = next(place for place in (path, *path.absolute().parents) if place.is_dir())
    usage = shutil.disk_usage(folder)
    full = any(getattr(one, "errno", None) in _FULL for one in _causes(error))
    files = os.statvfs(folder)
    # a file system without a table of them says 0 of 0
    if full and files.f_files and not files.f_favail:
        return DiskFullError(
            f"{what}: the disk has no room for another file ({files.f_favail:,} of "
            f"{files.f_files:,} inodes are free at {folder}, and {usage.free / 1e6:,.1f} MB); "
            "remove files there, or move the run directory, then go on with --resume"
        )
    if full or usage.free < _ALMOST_NOTHING:
        return DiskFullError(
            f"{what}: the disk is full ({usage.free / 1e6:,.1f} of {usage.total / 1e6:,.1f} MB are "
            f"free at {folder}); "
            "make room there, or move the run directory, then go on with --resume"
        )
    words = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return StoreError(f"{what}: {words.splitlines()[-1]}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from, and what several ranks raised."""
    # torch's CheckpointException: by rank the error and its traceback
    ranks = getattr(error, "failures", None)
    for one in ranks.values() if isinstance(ranks, dict) else ():
        yield one[0] if isinstance(one, tuple) else one
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an
    exception.

    Args:
        path: the file.
        durable: whether it outlives a power failure too, which costs a sync of file and folder.

    Raises:
        StoreError: the file cannot be written, synced or renamed, or ``path`` is no file.
    """
    check_replaceable(path)
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if durable:
            take_place(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_failure(f"{path} cannot be written", path, error) from error
        raise


def check_replaceable(path: Path) -> None:
    """Refuses what a file must not take the place of: a device such as ``/dev/stdout``, a FIFO, a
    folder, or a link to one.

    Raises:
        StoreError: it is one.
    """
    try:
        check_regular(path, follow=True)
    except NotRegularError as error:
        raise StoreError(
            f"{path} cannot be written: {error}; name a file elsewhere"
        ) from error
    # it does not exist, or whoever writes it is told
    except OSError:
        pass


def temporary_beside(path: Path) -> Path:
    """A new name for what is to take the place of ``path``: ``.NAME.<hex>.tmp``."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def take_place(temporary: Path, path: Path) -> None:
    """Move a file to its place, durably.

    Raises:
        OSError: it cannot be synced or renamed.
    """
    # The content comes first: after a power failure the name must not lead to an empty file.
    sync_path(temporary)
    os.replace(temporary, path)
    # The rename itself becomes durable with the folder.
    sync_path(path.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder beside ``folder`` that takes its place when the block ends without an
    exception.

    What an earlier death left of it is removed first. Its files are not synced: such a folder can
    be made again from what the run keeps durably.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        # A rename takes no full folder's place.
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` in one step; durably, unless that is not asked for.

    Raises:
        StoreError: the file cannot be written.
    """
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in UTF-8, durably and in one step.

    Raises:
        StoreError: the file cannot be written.
    """
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON, durably and in one step.

    Raises:
        StoreError: ``value`` is not JSON (a NaN or infinity is not), or the file cannot be written.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} must hold JSON: {error}") from error
    write_text(path, text + "\n")


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, for which others wait.

    Raises:
        StoreError: the file cannot be made.
    """
    with os_refusals(f"{path} cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    # The lock ends with the descriptor, and the file stays: others may wait on this very one.
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hold_name(path: Path, otherwise: str = "write under another name") -> int:
    """Hold a lock file until the returned descriptor is closed or the process dies.

    A POSIX record lock: children forked by the process do not hold it, so that a run can be resumed
    while what a killed one started is still ending.

    Args:
        path: the file.
        otherwise: what to do where the process that holds it is to live.

    Raises:
        HeldError: another process holds it.
        StoreError: the file cannot be made.
    """
    with write_refusals(path, "cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(file, 99, 0).decode(errors="replace")
        os.close(file)
        if isinstance(error, BlockingIOError):
            raise HeldError(
                f"{path} is held by another process ({holder}): end it first, or {otherwise}"
            ) from error
        raise StoreError(f"{path} cannot be locked: {error.strerror or error}") from error
    # for whom it keeps out; a full disk may not take even that
    with suppress(OSError):
        os.ftruncate(
            file, os.pwrite(file, f"{os.getpid()} on {platform.node()}".encode(), 0)
        )
    return file
