"""Step files: the live files of each step of one writer, and their sealing into shards.

A live file bears the number of the shard it becomes: a live file beside a shard of its name was
sealed just before a death, and is only to be removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.run_directory import RunDirectory
from agentrl.store.trajectories.codec import Row
from agentrl.store.trajectories.live import (
    FramedWriter,
    read_frame,
    read_framed,
    remove_framed,
)
from agentrl.store.trajectories.shard import write_shard
from agentrl.store.trajectories.token_arrays import TokenArrays


class StepFiles:
    """One writer's trajectories by the step in which they finished. Used by one thread.

    Args:
        run: whose trajectories.
        writer: the name of the files.
    """

    def __init__(self, run: RunDirectory, writer: str) -> None:
        self._run = run
        self._writer = writer
        self._open: dict[int, FramedWriter] = {}

    def recover(self) -> int:
        """Seal what an earlier writer of this name left; the number of its trajectories.

        Raises:
            StoreError: a file cannot be read or written.
        """
        recovered = 0
        for path in sorted(self._run.live_folder.glob(f"step=*/{self._writer}-*.jsonl")):
            if path.stem.rpartition("-")[0] == self._writer:
                if not self._shard(path).exists():
                    recovered += self._seal(path)
                self._remove(path)
        return recovered

    def append(self, step: int, row: Row, arrays: TokenArrays) -> None:
        """Add a trajectory to a step's live files.

        Raises:
            OSError: it cannot be written.
            StoreError: the files cannot be opened.
        """
        if step not in self._open:
            path = self._run.live_path(step, self._writer, self._next_number(step))
            self._open[step] = FramedWriter(path)
        self._open[step].append(row, arrays.pack())

    def seal(self, step: int) -> None:
        """Turn a step's live files into a shard; nothing where it has none. Later ones of the step
        make another.

        Raises:
            OSError, StoreError: a file cannot be read or written; the live files stay.
        """
        if step not in self._open:
            return
        files = self._open.pop(step)
        files.close()
        self._seal(files.path)
        self._remove(files.path)

    def seal_all(self) -> None:
        """Seal every step that has live files.

        Raises:
            OSError, StoreError: as ``seal``.
        """
        for step in sorted(self._open):
            self.seal(step)

    def sync(self) -> None:
        """Make every live file durable.

        Raises:
            OSError: the disk refuses.
        """
        for files in self._open.values():
            files.sync()

    def close(self) -> None:
        """Close the live files as they are; a second call does nothing."""
        while self._open:
            self._open.popitem()[1].close()

    def _next_number(self, step: int) -> int:
        folder = self._run.shard_path(step, self._writer, 1).parent
        names = (path.stem.rpartition("-") for path in folder.glob(f"{self._writer}-*.parquet"))
        return 1 + max(
            (int(number) for writer, _, number in names if writer == self._writer), default=0
        )

    def _shard(self, live: Path) -> Path:
        return self._run.sealed_folder / live.parent.name / f"{live.stem}.parquet"

    def _seal(self, live: Path) -> int:
        rows = read_live_rows(live)
        first = next(rows, None)
        return 0 if first is None else write_shard(self._shard(live), chain([first], rows))

    def _remove(self, live: Path) -> None:
        remove_framed(live)
        try:
            live.parent.rmdir()
        except OSError as error:
            if not any(live.parent.iterdir()):
                raise StoreError(f"{live.parent} cannot be removed: {error}") from error


def read_live_rows(path: Path) -> Iterator[tuple[Row, TokenArrays]]:
    """The rows of a live file with their arrays, in order.

    Raises:
        StoreError: a whole line is no trajectory, or its frame is not there or is damaged.
    """
    for row in read_framed(path):
        data = read_frame(path, row.pop("frame"))
        yield row, TokenArrays.unpack(data, row["num_tokens"])
