"""Trajectory files: the trajectories of one writer, live by step and sealed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from agentrl.store.run_directory import RunDirectory
from agentrl.store.step_files.live import read_framed
from agentrl.store.step_files.sealing import StepFiles
from agentrl.store.trajectories.columns import Row
from agentrl.store.trajectories.live_record import live_record, read_live_row
from agentrl.store.trajectories.shard import StoredRow, TrajectoryShardWriter, write_shard
from agentrl.store.trajectories.token_arrays import TokenArrays


class TrajectoryFiles(StepFiles[StoredRow]):
    """One writer's trajectories, by step. Used by one thread.

    Args:
        run: whose trajectories.
        writer: the name of the files.
    """

    def __init__(self, run: RunDirectory, writer: str) -> None:
        super().__init__(run.live_folder, run.sealed_folder, writer)

    def append(self, step: int, row: Row, arrays: TokenArrays) -> None:
        """Add a trajectory to a step; raises what ``StepFiles.add`` raises."""
        self.add(step, *live_record(row, arrays), (row, arrays))

    def new_shard(self, path: Path) -> TrajectoryShardWriter:
        """See ``StepFiles``; so for what follows."""
        return TrajectoryShardWriter(path)

    def seal_live(self, live: Path, shard: Path) -> int:
        rows = (read_live_row(live, record) for record in read_framed(live))
        first = next(rows, None)
        return 0 if first is None else write_shard(shard, chain([first], rows))
