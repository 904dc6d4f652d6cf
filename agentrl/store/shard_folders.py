"""Shard folders: which shards a run has, and their rows that were read last."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from agentrl.store.disk import Stamp

_SETTLED_S = 3.0
"""How long a folder's time must have stood still before it is believed: some file systems count
whole seconds, so that a change right after a look may not move it."""


@dataclass(slots=True)
class _Folder:
    """A step's folder as it was seen last: its time, since when it has that, and its shards."""

    changed_ns: int
    since: float
    shards: dict[Path, Stamp] = field(default_factory=dict)


class ShardFolders:
    """The shards below a folder of step folders. Used by one thread.

    Args:
        root: ``RunDirectory.sealed_folder``; it need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, _Folder] = {}

    def look(self, newest: int | None = None) -> tuple[list[Path], list[Path]]:
        """What changed since the last look.

        Args:
            newest: looks at so many of the last steps, and at steps never seen before; by default
                at all. To ask a thousand folders for their time takes 2 ms.

        Returns:
            The shards that are new, in the order of their paths, and those that have gone; one
            whose file is another now is in both.

        Raises:
            OSError: a folder cannot be read.
        """
        names = self._steps()
        added: list[Path] = []
        gone: list[Path] = []
        for name in self._folders.keys() - set(names):
            gone += self._folders.pop(name).shards
        first = 0 if newest is None else max(0, len(names) - newest)
        asked = [
            *(name for name in names[:first] if name not in self._folders),
            *names[first:],
        ]
        now = time.monotonic()
        for name in asked:
            known = self._folders.get(name)
            changed_ns = self._changed_ns(name)
            if known is None or known.changed_ns != changed_ns:
                shards = {} if known is None else known.shards
                known = self._folders[name] = _Folder(changed_ns, now, shards)
            elif now - known.since > _SETTLED_S:
                continue
            shards = dict(self._shards(name))
            gone += [
                path for path, stamp in known.shards.items() if shards.get(path) != stamp
            ]
            added += [p for p, stamp in shards.items() if known.shards.get(p) != stamp]
            known.shards = shards
        return sorted(added), gone

    def _steps(self) -> list[str]:
        try:
            return sorted(
                name for name in os.listdir(self._root) if name.startswith("step=")
            )
        except FileNotFoundError:
            return []

    def _changed_ns(self, step: str) -> int:
        """When a folder changed; 0 where it went since it was listed."""
        try:
            return os.stat(f"{self._root}/{step}").st_mtime_ns
        except FileNotFoundError:
            return 0

    def _shards(self, step: str) -> list[tuple[Path, Stamp]]:
        folder = self._root / step
        shards = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    # what begins with a dot is still being written
                    if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                        stamp = Stamp.of(entry.stat(follow_symlinks=False))
                        shards.append((folder / entry.name, stamp))
        # the folder, or a shard of it, went since it was listed
        except FileNotFoundError:
            return shards
        return shards


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
            stamp = Stamp.of(path.stat())
        except OSError:
            # says what is wrong with it
            return self._read(path, row)
        found: _T = self._recent(path, stamp, row)
        return found
