"""Trajectory count: how many trajectories a run holds, without an index of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from agentrl.guards.regular_file import open_regular
from agentrl.store import RunDirectory
from agentrl.store.shard import shard_file

_SHARDS = 100_000
"""Of all runs whose rows are remembered."""


def count_trajectories(run: RunDirectory) -> int:
    """How many rows the files of a run have now.

    A trajectory that a resumed run played again counts twice, as it lies on disk.
    """
    sealed = sorted(run.sealed_folder.glob("step=*/*.parquet"))
    live = run.live_folder.glob("step=*/*.jsonl")
    return sum(map(_sealed, sealed)) + sum(map(_lines, live))


def _sealed(path: Path) -> int:
    try:
        state = path.stat()
    except OSError:
        # store.keep left nothing of it
        return 0
    return _rows(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=_SHARDS)
def _rows(path: Path, size: int, modified: int) -> int:
    """The rows of a shard in this state: ``store.keep`` may replace one by a smaller one."""
    try:
        with shard_file(path) as file:
            rows: int = file.metadata.num_rows
    except (OSError, pa.ArrowException):
        # the run's own page names the damage
        return 0
    return rows


def _lines(path: Path) -> int:
    try:
        with open_regular(path) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        # sealed meanwhile
        return 0
