"""Step files: the live files of each step of one writer, and their sealing into shards.

A row goes to both: to the live file, from which a death takes nothing, and to a shard that grows
beside its place, which it takes when the step is sealed. So sealing reads nothing back.

A live file bears the number of the shard it becomes: a live file beside a shard of its name was
sealed just before a death, and is only to be removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic

from agentrl.errors import StoreError
from agentrl.store.jsonl import Record
from agentrl.store.run_directory import step_name
from agentrl.store.step_files.live import FramedWriter, remove_framed
from agentrl.store.step_files.shard_writer import Row, ShardWriter


class StepFiles(ABC, Generic[Row]):
    """What one writer stores, by step, in one pair of folders. Used by one thread.

    Args:
        live: folder of the live files.
        sealed: folder of the shards.
        writer: the name of the files.
    """

    def __init__(self, live: Path, sealed: Path, writer: str) -> None:
        self._live = live
        self._sealed = sealed
        self._writer = writer
        self._open: dict[int, FramedWriter] = {}
        self._growing: dict[Path, ShardWriter[Row] | None] = {}
        """The shards of steps that are not sealed, by their live file; None where a row came that
        has no column in it, so that sealing reads the live file back."""

    @abstractmethod
    def new_shard(self, path: Path) -> ShardWriter[Row]:
        """What writes a shard of this kind."""

    @abstractmethod
    def seal_live(self, live: Path, shard: Path) -> int:
        """Make a shard of a live file alone; the number of its rows, of which none makes no shard.

        Raises:
            StoreError: a line or frame is damaged, or the shard cannot be written.
        """

    def recover(self) -> int:
        """Seal what an earlier writer of this name left; the number of its trajectories.

        Raises:
            StoreError: a file cannot be read or written.
        """
        for path in self._sealed.glob(f"step=*/.{self._writer}-*.parquet.*.tmp"):
            if self._is_own(path.name[1:].partition(".parquet.")[0]):
                # a shard that its death left half written
                path.unlink()
        recovered = 0
        for path in sorted(self._live.glob(f"step=*/{self._writer}-*.jsonl")):
            if self._is_own(path.stem):
                if not self._shard_of(path).exists():
                    recovered += self.seal_live(path, self._shard_of(path))
                self._remove(path)
        for path in self._live.glob(f"step=*/{self._writer}-*.zst"):
            # its lines were removed just before a death
            if self._is_own(path.stem):
                self._remove(path.with_suffix(".jsonl"))
        return recovered

    def add(self, step: int, record: Record, data: bytes, row: Row) -> None:
        """Add a row to a step.

        Args:
            step: whose.
            record, data: the row in the live file.
            row: in the shard.

        Raises:
            OSError, StoreError: it cannot be written.
        """
        if step not in self._open:
            name = f"{self._writer}-{self._next_number(step):04d}.jsonl"
            path = self._live / step_name(step) / name
            self._open[step] = FramedWriter(path)
            self._growing[path] = self.new_shard(self._shard_of(path))
        files = self._open[step]
        files.append(record, data)
        growing = self._growing[files.path]
        if growing is not None and growing.takes(row):
            growing.add(row)
        elif growing is not None:
            growing.discard()
            self._growing[files.path] = None

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
        growing = self._growing.pop(files.path)
        if growing is None:
            self.seal_live(files.path, self._shard_of(files.path))
        else:
            growing.publish()
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
            OSError, StoreError: the disk refuses.
        """
        for files in self._open.values():
            files.sync()

    def close(self) -> None:
        """Close the live files as they are; a second call does nothing."""
        while self._open:
            self._open.popitem()[1].close()
        while self._growing:
            growing = self._growing.popitem()[1]
            if growing is not None:
                growing.discard()

    def _is_own(self, stem: str) -> bool:
        """Whether a file of this name is this writer's, and none of one whose name begins so."""
        return stem.rpartition("-")[0] == self._writer

    def _next_number(self, step: int) -> int:
        folder = self._sealed / step_name(step)
        names = (path.stem.rpartition("-") for path in folder.glob(f"{self._writer}-*.parquet"))
        return 1 + max(
            (int(number) for writer, _, number in names if writer == self._writer), default=0
        )

    def _shard_of(self, live: Path) -> Path:
        """The shard that a live file becomes."""
        return self._sealed / live.parent.name / f"{live.stem}.parquet"

    def _remove(self, live: Path) -> None:
        remove_framed(live)
        try:
            live.parent.rmdir()
        except OSError as error:
            if not any(live.parent.iterdir()):
                raise StoreError(f"{live.parent} cannot be removed: {error}") from error
