"""Drop log: which trajectories ``store.keep`` dropped, a line each time a shard shrank.

A line is durable before the shard shrinks. So after a death a dropped id may still be there, which
then counts, and none is gone without a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.jsonl import JsonlWriter, read_jsonl
from agentrl.store.line_follower import LineFollower
from agentrl.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class DropRecord:
    """What was dropped of one shard.

    Args:
        shard: its path from the run's root.
        step: of its folder.
        of: its trajectories before.
        kept: those that stay.
        newest: the last ``recorded_at`` among its trajectories.
        dropped: the ids of the others.
    """

    shard: str
    step: int
    of: int
    kept: int
    newest: float
    dropped: tuple[str, ...]

    @classmethod
    def of_line(cls, record: dict[str, Any]) -> DropRecord:
        """From a line.

        Raises:
            StoreError: it is none.
        """
        try:
            own = {name: record[name] for name in cls.__slots__}
            return cls(**{**own, "dropped": tuple(own["dropped"])})
        except (KeyError, TypeError) as error:
            raise StoreError(f"{record!r:.200} is no record of a drop: {error!r}") from error


class DropLog:
    """The file of one writer; made when something is dropped first. Used by one thread."""

    def __init__(self, run: RunDirectory, writer: str) -> None:
        self.path = run.dropped_folder / f"{writer}.jsonl"
        self._file: JsonlWriter | None = None

    def append(self, record: DropRecord) -> None:
        """Write down a drop that is about to happen, durably.

        Raises:
            StoreError: it cannot be written.
        """
        if self._file is None:
            self._file = JsonlWriter(self.path)
        self._file.append(asdict(record))
        self._file.sync()

    def records(self) -> list[DropRecord]:
        """What it holds, also of earlier writers of the name.

        Raises:
            StoreError: the file cannot be read, or a whole line of it.
        """
        return list(_records(self.path))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()


def find_drop(run: RunDirectory, trajectory_id: str) -> DropRecord | None:
    """The newest record of a trajectory's drop; None where none names it.

    Raises:
        StoreError: a file cannot be read.
    """
    found = None
    for path in sorted(run.dropped_folder.glob("*.jsonl")):
        for record in _records(path):
            if trajectory_id in record.dropped:
                found = record
    return found


def _records(path: Path) -> Iterator[DropRecord]:
    return map(DropRecord.of_line, read_jsonl(path))


class DropCounts:
    """How many trajectories each step kept, of those that it had; each look reads what was
    appended. Used by one thread.

    Args:
        run: the run.
        on_damage: is told of a line that cannot be read.
    """

    def __init__(self, run: RunDirectory, on_damage: Callable[[StoreError], None]) -> None:
        self._folder = run.dropped_folder
        self._on_damage = on_damage
        self._files: dict[Path, LineFollower] = {}
        self._shards: dict[str, tuple[int, int, int]] = {}
        """Step, trajectories kept and trajectories before, by shard."""

    def by_step(self) -> dict[int, tuple[int, int]]:
        """``(kept, of)`` by step; a step that is whole is left out."""
        for path in sorted(self._folder.glob("*.jsonl")):
            follower = self._files.setdefault(path, LineFollower(path))
            try:
                follower.is_same()  # where it is another file, its lines come again
                for line in follower.records(self._on_damage):
                    self._count(line.value)
            except StoreError as error:
                self._on_damage(error)
        found: dict[int, tuple[int, int]] = {}
        for step, kept, of in self._shards.values():
            before = found.get(step, (0, 0))
            found[step] = (before[0] + kept, before[1] + of)
        return dict(sorted(found.items()))

    def _count(self, line: dict[str, Any]) -> None:
        try:
            record = DropRecord.of_line(line)
        except StoreError as error:
            self._on_damage(error)
            return
        # a shard may shrink again when the rules change: it had what it had at first
        of = self._shards.get(record.shard, (0, 0, record.of))[2]
        self._shards[record.shard] = (record.step, record.kept, of)
