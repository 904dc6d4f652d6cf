"""Recent rows: those of shards that were read last, since a page asks for one several times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

_Row = TypeVar("_Row", bound=Hashable)
_T = TypeVar("_T")

KEPT = 8
"""A row holds on to the arrays of its row group, which is 2 MB where one row is not longer."""


class RecentRows(Generic[_Row, _T]):
    """The rows that were read last. Used by one thread.

    Args:
        read: reads a row of a shard.
    """

    def __init__(self, read: Callable[[Path, _Row], _T]) -> None:
        self._read = read
        self._recent = functools.lru_cache(KEPT)(lambda path, stamp, row: read(path, row))

    def get(self, path: Path, row: _Row) -> _T:
        """The row, read again where the shard was replaced since.

        Args:
            path: the shard.
            row: which; ``read`` is given it.

        Raises:
            StoreError: ``read`` did.
        """
        try:
            stat = path.stat()
        except OSError:
            # says what is wrong with it
            return self._read(path, row)
        found: _T = self._recent(path, (stat.st_ino, stat.st_mtime_ns), row)
        return found
