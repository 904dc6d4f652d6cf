"""Removal: deletes folders with hostile contents by descriptor, so that no link is followed.

A survivor of the code that swaps a folder for a link meanwhile makes a removal fail and no more:
each folder is opened in the one above it (``O_NOFOLLOW``), and its entries and modes are changed
through that descriptor.
"""

from __future__ import annotations

import os
import stat
import sys

from ..proc import opened, owned

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
            moved.append(f".removing-{os.urandom(8).hex()}")
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=root)
