"""Trajectory count: how many trajectories a run holds, without an index of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from agentrl.guards.regular_file import open_regular
from agentrl.store import RunDirectory
from agentrl.store.step_files.shard_file import shard_file


class TrajectoryCount:
    """Counts the rows of a run's files, each sealed shard once as it is. Used under the run's lock.

    A trajectory that a resumed run played again counts twice, as it lies on disk.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._rows: dict[Path, tuple[tuple[int, int], int]] = {}
        """The state and the rows of each shard; ``store.keep`` may replace one."""

    def count(self) -> int:
        """The number now."""
        sealed = sorted(self._run.sealed_folder.glob("step=*/*.parquet"))
        live = self._run.live_folder.glob("step=*/*.jsonl")
        return sum(map(self._sealed, sealed)) + sum(map(_lines, live))

    def _sealed(self, path: Path) -> int:
        try:
            found = path.stat()
            state = (found.st_size, found.st_mtime_ns)
            known, rows = self._rows.get(path, ((-1, -1), 0))
            if known != state:
                self._rows[path] = (state, 0)
                with shard_file(path) as file:
                    rows = file.metadata.num_rows
                self._rows[path] = (state, rows)
        except (OSError, pa.ArrowException):  # damaged or gone: the run's own page names it
            return 0
        return rows


def _lines(path: Path) -> int:
    try:
        with open_regular(path) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:  # sealed meanwhile
        return 0
