"""Safe file access below one hostile folder: no traversal, no links, no devices."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from ..proc import opened, owned
from .removal import FOLDER

MAX_DEPTH = 64
# of one listing: a name of the code's choosing may be long, and longer as JSON
_MAX_NAMES_BYTES = 2**20


class PathRefused(ValueError):  # noqa: N818  what is refused is the caller's path; nothing here failed
    """A path or file that may not be read or written from outside the sandbox."""


def split_path(path: str) -> list[str]:
    """The parts of a relative path.

    Raises:
        PathRefused: the path is empty, absolute, goes up, holds a NUL or is nested too deeply.
    """
    if "\0" in path:
        raise PathRefused(f"{path!r}: a path cannot hold a NUL character")
    if path.startswith("/"):
        raise PathRefused(
            f"{path!r}: absolute paths are refused; give one relative to the working folder"
        )
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise PathRefused(f"{path!r}: the path names no file")
    if ".." in parts:
        raise PathRefused(f"{path!r}: '..' is refused; files stay inside the working folder")
    if len(parts) > MAX_DEPTH:
        raise PathRefused(f"{path!r}: nested deeper than {MAX_DEPTH} folders")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathRefused(f"{path!r}: the path is not valid UTF-8") from None
    return parts


def _open_parent(root: str, parts: list[str], *, make: bool) -> int:
    named = repr("/".join(parts))
    fd = os.open(root, FOLDER)
    for part in parts[:-1]:
        with owned(fd):
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=fd)
            except OSError as error:
                raise PathRefused(f"{named}: {error.strerror}") from error
            try:
                fd = os.open(part, FOLDER, dir_fd=fd)
            except OSError as error:
                why = f"{part!r} is a link or no folder ({error.strerror})"
                raise PathRefused(f"{named}: {why}") from error
    return fd


@contextlib.contextmanager
def _place(root: str, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """The open folder of a path, and the name in it; what the block cannot do there is refused."""
    parts = split_path(path)
    with owned(_open_parent(root, parts, make=make)) as parent:
        try:
            yield parent, parts[-1]
        except OSError as error:
            raise PathRefused(f"{path!r}: {error.strerror}") from error


def write_file(root: str, path: str, data: bytes) -> None:
    """Create or replace a regular file, and the folders above it.

    Raises:
        PathRefused: see :func:`split_path`; or a link, device or folder stands in the way.
    """
    with _place(root, path, make=True) as (parent, name):
        # replaced rather than opened: what lies there may be a link, a pipe or a device
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        fd = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent
        )
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def read_file(root: str, path: str, limit: int) -> bytes:
    """The contents of a regular file of at most ``limit`` bytes.

    Raises:
        PathRefused: no such file, a link, a device, a folder, or larger than the limit.
    """
    with _place(root, path, make=False) as (parent, name):
        # non-blocking: opening a named pipe must not wait for a writer
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
        )
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PathRefused(f"{path!r}: not a regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PathRefused(
            f"{path!r}: larger than the limit of {limit} bytes; raise Limits.file_bytes"
        )
    return data


def list_files(root: str, max_files: int) -> list[tuple[str, int]]:
    """``(path, bytes)`` of regular files, sorted, at most ``max_files`` and a megabyte of names.

    Links are not followed; what cannot be read, or is nested deeper than ``MAX_DEPTH`` folders, is
    left out.
    """
    found: list[tuple[str, int]] = []
    named_bytes = 0
    with opened(root, FOLDER) as fd:
        for name, info in _walk(fd, "", 0):
            if stat.S_ISREG(info.st_mode):
                named_bytes += len(name.encode(errors="surrogateescape"))
                if len(found) == max_files or named_bytes > _MAX_NAMES_BYTES:
                    break
                found.append((name, info.st_size))
    return sorted(found)


def _walk(folder: int, above: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below an open folder as ``(relative path, lstat)``."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                yield above + entry.name, info
                if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                    with opened(entry.name, FOLDER, dir_fd=folder) as fd:
                        yield from _walk(fd, f"{above}{entry.name}/", depth + 1)
    except OSError:
        return  # the code forbids its own folders
