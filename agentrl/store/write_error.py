"""Write failure: a sentence that says why a file was not written, and names a disk that is
full, of bytes or of inodes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import DiskFullError, StoreError

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
