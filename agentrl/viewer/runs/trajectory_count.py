"""Trajectory count: how many trajectories a run holds, without an index of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.store import RunDirectory


class TrajectoryCount:
    """Counts the rows of a run's files, each sealed shard once. Used under the run's lock.

    A trajectory that a resumed run played again counts twice, as it lies on disk.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._rows: dict[Path, int] = {}

    def count(self) -> int:
        """The number now."""
        sealed = sorted(self._run.sealed_folder.glob("step=*/*.parquet"))
        live = self._run.live_folder.glob("step=*/*.jsonl")
        return sum(map(self._sealed, sealed)) + sum(map(_lines, live))

    def _sealed(self, path: Path) -> int:
        if path not in self._rows:
            try:
                self._rows[path] = pq.read_metadata(path).num_rows
            except (OSError, pa.ArrowException):  # damaged: the run's own page names it
                self._rows[path] = 0
        return self._rows[path]


def _lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:  # sealed meanwhile
        return 0
