"""Hostile folders: their files are read, written and removed, whatever lies in them.

A survivor of the code that swaps a folder for a link meanwhile makes a removal fail and no more:
each folder is opened in the one above it (``O_NOFOLLOW``), and its entries and modes are changed
through that descriptor.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator

from .proc import opened, owned

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLACE = (
    (os.O_PATH if sys.platform == "linux" else os.O_RDONLY)
    | os.O_DIRECTORY
    | os.O_NOFOLLOW
    | os.O_CLOEXEC
)
# levels; deeper folders are moved to the top first, so that neither recursion nor descriptors grow
_IN_PLACE = 32


def open_folder(name: str, parent: int | None = None) -> int:
    """The descriptor of a folder that its owner may have closed, and that is open to it afterwards.

    Args:
        name: of the folder in ``parent``; a path where that is None.
        parent: a descriptor.

    Raises:
        OSError: no folder bears the name (a link does not), or it is another user's.
    """
    try:
        fd = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        _add_mode(name, parent)
        fd = os.open(name, FOLDER, dir_fd=parent)
    found = stat.S_IMODE(os.fstat(fd).st_mode)
    if found & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(fd, found | stat.S_IRWXU)
    return fd


def _add_mode(name: str, parent: int | None) -> None:
    """Give its owner the rights to a folder that cannot be opened, and to nothing that a link leads
    to.
    """
    if sys.platform != "linux":
        os.chmod(name, stat.S_IRWXU, dir_fd=parent, follow_symlinks=False)
        return
    with opened(name, PLACE, dir_fd=parent) as fd:
        set_mode(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IRWXU)


def set_mode(place: int, mode: int) -> None:
    """Change the mode of a folder that was opened as a ``PLACE``, which asks for no right to read
    it.

    Raises:
        OSError: it is another user's.
    """
    if sys.platform == "linux":
        os.chmod(f"/proc/self/fd/{place}", mode)
    else:
        os.fchmod(place, mode)


def remove(path: str) -> None:
    """Remove a folder with all that it holds, of any depth and any modes.

    Args:
        path: the folders above the last part are not the code's.

    Raises:
        OSError: something could not be removed.
    """
    above, name = os.path.split(path.rstrip("/"))
    with opened(above or ".", os.O_RDONLY | os.O_DIRECTORY) as parent:
        with owned(open_folder(name, parent)) as fd:
            _empty(fd)
        os.rmdir(name, dir_fd=parent)


def empty(path: str) -> None:
    """Remove what a folder holds; the folder itself stays.

    Raises:
        OSError: something could not be removed.
    """
    with owned(open_folder(path)) as fd:
        _empty(fd)


def _empty(root: int) -> None:
    moved: list[str] = []
    _empty_in_place(root, root, _IN_PLACE, moved)
    while moved:
        name = moved.pop()
        with owned(open_folder(name, root)) as fd:
            _empty_in_place(fd, root, _IN_PLACE, moved)
        os.rmdir(name, dir_fd=root)


def _empty_in_place(folder: int, root: int, levels: int, moved: list[str]) -> None:
    """Remove what ``folder`` holds; folders below so many levels go to ``root``, and their names to
    ``moved``.
    """
    with os.scandir(folder) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    # first: moving a folder may take a block
    for name in [name for name, is_folder in listed if not is_folder]:
        os.unlink(name, dir_fd=folder)
    for name in [name for name, is_folder in listed if is_folder]:
        # also where it is moved: the kernel asks for the right to write in it
        with owned(open_folder(name, folder)) as fd:
            if levels:
                _empty_in_place(fd, root, levels - 1, moved)
        if levels:
            os.rmdir(name, dir_fd=folder)
        else:
            # Too deep for a descriptor a level: it is moved to the root, and emptied from there.
            moved.append(f".removing-{os.urandom(8).hex()}")
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=root)


MAX_DEPTH = 64
# of one listing: a name of the code's choosing may be long, and longer as JSON
_MAX_NAMES_BYTES = 2**20
# of one look
_MAX_HASHED_BYTES = 64 * 2**20
_BLOCK = 2**20
# non-blocking: opening a named pipe must not wait for a writer
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


# No error by name: what is refused is the caller's path, and nothing here failed.
class PathRefused(ValueError):  # noqa: N818
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
        raise PathRefused(
            f"{path!r}: '..' is refused; files stay inside the working folder"
        )
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
                    # What is there already may be a link: opening it below refuses that.
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
        data = _contents(parent, name, limit + 1)
    if data is None:
        raise PathRefused(f"{path!r}: not a regular file")
    if len(data) > limit:
        raise PathRefused(
            f"{path!r}: larger than the limit of {limit} bytes; raise Limits.file_bytes"
        )
    return data


def cut_lines(
    data: bytes, first: int, last: int | None, max_bytes: int
) -> tuple[bytes, int, bool]:
    """Lines of a file, the number of all its lines, and whether these were cut.

    Args:
        data: of the file.
        first, last: numbers from 1, both inclusive; None is the end.
        max_bytes: of the lines, at most.
    """
    total = data.count(b"\n") + bool(data and not data.endswith(b"\n"))
    start = _offset(data, first - 1)
    end = len(data) if last is None else max(start, _offset(data, last))
    return data[start : min(end, start + max_bytes)], total, end - start > max_bytes


def _offset(data: bytes, num_lines: int) -> int:
    """Where the line after so many others begins."""
    at = 0
    # by blocks, as long as it lies behind them: a file may be nothing but newlines
    while (skipped := data.count(b"\n", at, at + _BLOCK)) < num_lines:
        at += _BLOCK
        num_lines -= skipped
        if at >= len(data):
            return len(data)
    for _ in range(num_lines):
        at = data.index(b"\n", at) + 1
    return at


def list_files(root: str, max_files: int) -> list[tuple[str, int]]:
    """``(path, bytes)`` of regular files, sorted, at most ``max_files`` and a megabyte of names.

    Links are not followed; what cannot be read, or is nested deeper than ``MAX_DEPTH`` folders, is
    left out.
    """
    with opened(root, FOLDER) as fd:
        return sorted(
            (path, info.st_size) for _, path, info in _RegularFiles(fd, max_files)
        )


def hash_files(
    root: str, max_files: int, largest: int
) -> tuple[list[tuple[str, int, str]], bool]:
    """``(path, bytes, SHA-256)`` of the files that :func:`list_files` gives, and whether these are
    all.

    The hash is empty of a file that is larger than ``largest`` bytes or cannot be read, and once
    ``_MAX_HASHED_BYTES`` were hashed.
    """
    hashed = []
    room = _MAX_HASHED_BYTES
    with opened(root, FOLDER) as fd:
        files = _RegularFiles(fd, max_files)
        for folder, path, info in files:
            most = min(largest, room)
            data = None
            if info.st_size <= most:
                # by now it may be another file, a larger one, or none
                with contextlib.suppress(OSError):
                    data = _contents(folder, path.rpartition("/")[2], most + 1)
            room -= len(data or b"")
            is_whole = data is not None and len(data) <= most
            sha256 = hashlib.sha256(data or b"").hexdigest() if is_whole else ""
            hashed.append((path, info.st_size, sha256))
    return sorted(hashed), files.complete


def _contents(folder: int, name: str, most: int) -> bytes | None:
    """The first ``most`` bytes of a file in an open folder; None where it is no regular file."""
    fd = os.open(name, _READ, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(fd)


class _RegularFiles:
    """The regular files below an open folder: their own folder, path and lstat.

    Attributes:
        complete: whether no file was left out for the bounds, once all were taken.
    """

    def __init__(self, root: int, max_files: int) -> None:
        self._root = root
        self._max_files = max_files
        self.complete = True

    def __iter__(self) -> Iterator[tuple[int, str, os.stat_result]]:
        count = 0
        named_bytes = 0
        for folder, path, info in _walk(self._root, "", 0):
            if stat.S_ISREG(info.st_mode):
                named_bytes += len(path.encode(errors="surrogateescape"))
                if count == self._max_files or named_bytes > _MAX_NAMES_BYTES:
                    self.complete = False
                    return
                count += 1
                yield folder, path, info


def _walk(folder: int, above: str, depth: int) -> Iterator[tuple[int, str, os.stat_result]]:
    """Every entry below an open folder as ``(its folder, relative path, lstat)``."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                yield folder, above + entry.name, info
                if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                    with opened(entry.name, FOLDER, dir_fd=folder) as fd:
                        yield from _walk(fd, f"{above}{entry.name}/", depth + 1)
    except OSError:
        # the code forbids its own folders
        return
