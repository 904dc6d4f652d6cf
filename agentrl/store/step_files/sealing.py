"""Step files: the live files of each step of one writer, and their sealing into shards.

A live file bears the number of the shard it becomes: a live file beside a shard of its name was
sealed just before a death, and is only to be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.run_directory import step_name
from agentrl.store.step_files.live import (
    FramedWriter,
    remove_framed,
)


class StepFiles:
    """What one writer stores, by step, in one pair of folders. Used by one thread.

    Args:
        live: folder of the live files.
        sealed: folder of the shards.
        writer: the name of the files.
        seal: makes a shard (its second argument) of a live file; the number of its rows, of which
            none makes no shard.
    """

    def __init__(
        self, live: Path, sealed: Path, writer: str, seal: Callable[[Path, Path], int]
    ) -> None:
        self._live = live
        self._sealed = sealed
        self._writer = writer
        self._make_shard = seal
        self._open: dict[int, FramedWriter] = {}

    def recover(self) -> int:
        """Seal what an earlier writer of this name left; the number of its trajectories.

        Raises:
            StoreError: a file cannot be read or written.
        """
        for path in self._sealed.glob(f"step=*/.{self._writer}-*.parquet.*.tmp"):
            if self._is_own(path.name[1:].partition(".parquet.")[0]):
                path.unlink()  # a shard that its death left half written
        recovered = 0
        for path in sorted(self._live.glob(f"step=*/{self._writer}-*.jsonl")):
            if self._is_own(path.stem):
                if not self.shard_of(path).exists():
                    recovered += self._make_shard(path, self.shard_of(path))
                self._remove(path)
        for path in self._live.glob(f"step=*/{self._writer}-*.zst"):
            if self._is_own(path.stem):  # its lines were removed just before a death
                self._remove(path.with_suffix(".jsonl"))
        return recovered

    def append(self, step: int, record: Mapping[str, Any], arrays: bytes) -> Path:
        """Add a record to a step's live files; the path of its lines.

        Raises:
            OSError: it cannot be written.
            StoreError: the files cannot be opened.
        """
        if step not in self._open:
            name = f"{self._writer}-{self._next_number(step):04d}.jsonl"
            self._open[step] = FramedWriter(self._live / step_name(step) / name)
        self._open[step].append(record, arrays)
        return self._open[step].path

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
        self._make_shard(files.path, self.shard_of(files.path))
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

    def _is_own(self, stem: str) -> bool:
        """Whether a file of this name is this writer's, and none of one whose name begins so."""
        return stem.rpartition("-")[0] == self._writer

    def _next_number(self, step: int) -> int:
        folder = self._sealed / step_name(step)
        names = (path.stem.rpartition("-") for path in folder.glob(f"{self._writer}-*.parquet"))
        return 1 + max(
            (int(number) for writer, _, number in names if writer == self._writer), default=0
        )

    def shard_of(self, live: Path) -> Path:
        """The shard that a live file becomes."""
        return self._sealed / live.parent.name / f"{live.stem}.parquet"

    def _remove(self, live: Path) -> None:
        remove_framed(live)
        try:
            live.parent.rmdir()
        except OSError as error:
            if not any(live.parent.iterdir()):
                raise StoreError(f"{live.parent} cannot be removed: {error}") from error
