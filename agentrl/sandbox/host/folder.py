"""File access below one folder whose contents are hostile: no traversal, no links, no devices."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator

_MAX_DEPTH = 64
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        raise PathRefused(f"{path!r}: absolute paths are refused; give one relative to the working folder")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise PathRefused(f"{path!r}: the path names no file")
    if ".." in parts:
        raise PathRefused(f"{path!r}: '..' is refused; files stay inside the working folder")
    if len(parts) > _MAX_DEPTH:
        raise PathRefused(f"{path!r}: nested deeper than {_MAX_DEPTH} folders")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathRefused(f"{path!r}: the path is not valid UTF-8") from None
    return parts


def _open_parent(root: str, parts: list[str], *, make: bool) -> int:
    fd = os.open(root, _DIR_FLAGS)
    for part in parts[:-1]:
        if make:
            try:
                os.mkdir(part, 0o700, dir_fd=fd)
            except FileExistsError:
                pass
            except OSError as error:
                os.close(fd)
                raise PathRefused(f"{'/'.join(parts)!r}: {error.strerror}") from error
        try:
            below = os.open(part, _DIR_FLAGS, dir_fd=fd)
        except OSError as error:
            raise PathRefused(f"{'/'.join(parts)!r}: {part!r} is a link or no folder ({error.strerror})") from error
        finally:
            os.close(fd)
        fd = below
    return fd


def write_file(root: str, path: str, data: bytes) -> None:
    """Create or replace a regular file, and the folders above it.

    Raises:
        PathRefused: see :func:`split_path`; or a link, device or folder stands in the way.
    """
    parts = split_path(path)
    parent = _open_parent(root, parts, make=True)
    try:
        # replaced rather than opened: what lies there may be a link, a pipe or a device
        with contextlib.suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=parent)
        fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
    except OSError as error:
        raise PathRefused(f"{path!r}: {error.strerror}") from error
    finally:
        os.close(parent)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def read_file(root: str, path: str, limit: int) -> bytes:
    """The contents of a regular file of at most ``limit`` bytes.

    Raises:
        PathRefused: no such file, a link, a device, a folder, or larger than the limit.
    """
    parts = split_path(path)
    parent = _open_parent(root, parts, make=False)
    try:
        # non-blocking: opening a named pipe must not wait for a writer
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        raise PathRefused(f"{path!r}: {error.strerror}") from error
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PathRefused(f"{path!r}: not a regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PathRefused(f"{path!r}: larger than the limit of {limit} bytes; raise sandbox.limits.file_bytes")
    return data


def walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below ``root``, links not followed, as ``(relative path, lstat)``; unreadable parts are left out."""
    pending = [("", 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder) if folder else root) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    info = entry.stat(follow_symlinks=False)
                    yield name, info
                    if stat.S_ISDIR(info.st_mode) and depth < _MAX_DEPTH:
                        pending.append((name, depth + 1))
        except OSError:
            continue  # the code removes and forbids its own folders while they are read


def list_files(root: str, max_files: int) -> list[tuple[str, int]]:
    """``(path, bytes)`` of every regular file, sorted, at most ``max_files``."""
    found = []
    for name, info in walk(root):
        if stat.S_ISREG(info.st_mode):
            found.append((name, info.st_size))
            if len(found) == max_files:
                break
    return sorted(found)


def usage(roots: Iterable[str], max_entries: int) -> tuple[int, int]:
    """``(bytes on disk, entries)`` below ``roots``; stops counting beyond ``max_entries``."""
    used = entries = 0
    for _, info in itertools.chain.from_iterable(map(walk, roots)):
        used += info.st_blocks * 512
        entries += 1
        if entries > max_entries:
            break
    return used, entries


def remove(root: str) -> None:
    """Remove a folder with all that it holds, as :func:`empty` does.

    Raises:
        OSError: something could not be removed.
    """
    empty(root)
    os.rmdir(root)


def empty(root: str) -> None:
    """Remove what a folder holds, of any depth and any modes, without following a link.

    Folders are lifted to the top before they are emptied, so that neither recursion nor path length
    grows with the nesting.

    Raises:
        OSError: something could not be removed.
    """
    os.chmod(root, 0o700)
    lifted = 0
    pending = [root]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as entries:
            listed = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for path, is_folder in listed:
            if not is_folder:
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            top = os.path.join(root, f".removing-{lifted}-{os.urandom(8).hex()}")
            lifted += 1
            os.rename(path, top)
            pending.append(top)
        if folder != root:
            os.rmdir(folder)
