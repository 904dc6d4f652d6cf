"""Run reader: reads a trajectory from the file in which the index has it.

To find it otherwise, all shards of the run are listed, which takes seconds of a large one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store import RunDirectory, TokenArrays, TrajectoryReader
from agentrl.store.shard_folders import RecentRows
from agentrl.store.trajectories.columns import Row
from agentrl.store.trajectories.files import find_shard_row
from agentrl.store.trajectories.listing import LiveListing

Find = Callable[[str, bool], Path | None]
"""Finds the file with the newest record of an id, or None; looks at the run's files before where
the second is true."""


class RunReader(TrajectoryReader):
    """A reader whose ``row`` is quick, and may be asked from any thread, as analyses do.

    Args:
        run: the run.
        lock: of the run.
        find: finds a trajectory.
    """

    def __init__(self, run: RunDirectory, lock: threading.RLock, find: Find) -> None:
        super().__init__(run)
        self._lock = lock
        self._find = find
        self._live_files: dict[Path, LiveListing] = {}
        self._recent = RecentRows(find_shard_row)

    def row(self, trajectory_id: str) -> tuple[Row, TokenArrays]:
        """See ``TrajectoryReader.row``."""
        with self._lock:
            # First as the index has it, which costs nothing, then after a look at the run's files.
            for looking in (False, True):
                path = self._find(trajectory_id, looking)
                if path is None:
                    # it came a moment ago, or was dropped
                    continue
                try:
                    return self._read_of(path, trajectory_id)
                except StoreError:
                    # it was sealed since, or its shard was rewritten
                    if looking:
                        raise
            raise self._missing(trajectory_id)

    def _read_of(self, path: Path, trajectory_id: str) -> tuple[Row, TokenArrays]:
        if path.suffix == ".jsonl":
            return self._live_row(path, trajectory_id)
        columns, arrays = self._recent.get(path, trajectory_id)
        return dict(columns), arrays

    def _live_row(self, path: Path, trajectory_id: str) -> tuple[Row, TokenArrays]:
        listing = self._live_files.get(path) or LiveListing(path, self._pass_over)
        self._live_files = {own: one for own, one in self._live_files.items() if own.is_file()}
        if not listing.grow():
            # another file of that name
            listing = LiveListing(path, self._pass_over)
            listing.grow()
        self._live_files[path] = listing
        if trajectory_id not in listing.ids:
            raise StoreError(f"{path} has no trajectory {trajectory_id!r} any more")
        return listing.read(len(listing.ids) - 1 - listing.ids[::-1].index(trajectory_id))
