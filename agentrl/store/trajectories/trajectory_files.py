"""Trajectory files: the live files of each step, and the shards that grow beside their places.

A trajectory goes to both: to the live file, from which a death takes nothing, and to the shard,
which takes its place when the step is sealed. So sealing reads nothing back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from agentrl.store.run_directory import RunDirectory
from agentrl.store.step_files.live import read_framed
from agentrl.store.step_files.sealing import StepFiles
from agentrl.store.trajectories.columns import Row
from agentrl.store.trajectories.live_record import live_record, read_live_row
from agentrl.store.trajectories.shard import TrajectoryShardWriter, write_shard
from agentrl.store.trajectories.token_arrays import TokenArrays


class TrajectoryFiles:
    """One writer's trajectories, by step. Used by one thread.

    Args:
        run: whose trajectories.
        writer: the name of the files.
    """

    def __init__(self, run: RunDirectory, writer: str) -> None:
        self._files = StepFiles(run.live_folder, run.sealed_folder, writer, self._seal)
        self._growing: dict[Path, TrajectoryShardWriter] = {}
        """The shards of steps that are not sealed, by their live file."""

    def recover(self) -> int:
        """Seal what an earlier writer of this name left; the number of its trajectories.

        Raises:
            StoreError: a file cannot be read or written.
        """
        return self._files.recover()

    def append(self, step: int, row: Row, arrays: TokenArrays) -> None:
        """Add a trajectory to a step.

        Raises:
            OSError: it cannot be written.
            StoreError: the files cannot be opened or written.
        """
        live = self._files.append(step, *live_record(row, arrays))
        if live not in self._growing:
            self._growing[live] = TrajectoryShardWriter(self._files.shard_of(live))
        self._growing[live].add((row, arrays))

    def seal(self, step: int) -> None:
        """See ``StepFiles``; so for what follows."""
        self._files.seal(step)

    def seal_all(self) -> None:
        self._files.seal_all()

    def sync(self) -> None:
        self._files.sync()

    def close(self) -> None:
        self._files.close()
        while self._growing:
            self._growing.popitem()[1].discard()

    def _seal(self, live: Path, shard: Path) -> int:
        growing = self._growing.pop(live, None)
        if growing is None:  # an earlier writer's
            rows = read_live_rows(live)
            first = next(rows, None)
            return 0 if first is None else write_shard(shard, chain([first], rows))
        growing.publish()
        return growing.num_rows


def read_live_rows(path: Path) -> Iterator[tuple[Row, TokenArrays]]:
    """The rows of a live file with their arrays, in order.

    Raises:
        StoreError: a whole line is no trajectory, or its frame is not there or is damaged.
    """
    for record in read_framed(path):
        yield read_live_row(path, record)
