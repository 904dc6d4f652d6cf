"""Listings: what a reader remembers of one file of trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from agentrl.errors import StoreError
from agentrl.guards.regular_file import open_regular
from agentrl.store.jsonl import parse_line
from agentrl.store.line_follower import LineFollower
from agentrl.store.step_files.live import frame_of, frames_size
from agentrl.store.trajectories.columns import Row
from agentrl.store.trajectories.live_record import read_live_row
from agentrl.store.trajectories.shard import read_shard_row, read_summaries
from agentrl.store.trajectories.summary import TrajectorySummary, summaries_of, summary_of
from agentrl.store.trajectories.token_arrays import TokenArrays


class Listing(Protocol):
    """The trajectories of one file, by their position in it."""

    path: Path
    ids: list[str]
    recorded_at: list[float]

    def fitting(self, filters: Mapping[str, Any]) -> Sequence[int]:
        """The positions of those whose columns equal every filter."""
        ...

    def summaries(self, positions: Sequence[int]) -> list[TrajectorySummary]:
        """What a list shows of some of them."""
        ...

    def read(self, position: int) -> tuple[Row, TokenArrays]:
        """One whole.

        Raises:
            StoreError: it cannot be read, or the file has gone.
        """
        ...


class ShardListing:
    """Of a sealed shard, whose summary columns stay in memory as Arrow has them: some 300 bytes a
    trajectory.

    Raises:
        StoreError: the file is no shard.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = read_summaries(path)
        self.ids: list[str] = self._table["id"].to_pylist()
        self.recorded_at: list[float] = self._table["recorded_at"].to_pylist()

    def fitting(self, filters: Mapping[str, Any]) -> Sequence[int]:
        """See ``Listing.fitting``."""
        if not filters:
            return range(len(self.ids))
        masks = [pc.equal(self._table[name], value) for name, value in filters.items()]
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_(mask, other)
        positions: list[int] = pc.indices_nonzero(mask).to_pylist()
        return positions

    def summaries(self, positions: Sequence[int]) -> list[TrajectorySummary]:
        """See ``Listing.summaries``."""
        table = self._table.take(pa.array(positions, pa.int64()))
        return summaries_of({name: table[name].to_pylist() for name in table.column_names})

    def read(self, position: int) -> tuple[Row, TokenArrays]:
        """See ``Listing.read``."""
        return read_shard_row(self.path, position)


class LiveListing:
    """Of a live file, of which each look parses what was appended.

    Args:
        path: the lines' file.
        on_damage: is told of a line that cannot be read, which is then passed over.
    """

    def __init__(self, path: Path, on_damage: Callable[[StoreError], None]) -> None:
        self.path = path
        self.ids: list[str] = []
        self.recorded_at: list[float] = []
        self._on_damage = on_damage
        self._summaries: list[TrajectorySummary] = []
        self._lines: list[tuple[int, int]] = []
        """Where each trajectory's line starts and how long it is."""
        self._follower = LineFollower(path)

    def grow(self) -> bool:
        """Take in what was appended; False where the file is another one now, or gone, so that
        this listing is of no more use.

        Raises:
            StoreError: the file cannot be read.
        """
        if not self._follower.is_same():
            return False
        frames = -1
        for place, start, size, record in self._follower.records(self._on_damage):
            try:
                end = sum(frame_of(place, record))
                if end > frames:
                    frames = frames_size(self.path)
                if end > frames:  # the machine died, and the disk kept the line alone
                    return True
                summary = summary_of(record)
            except (StoreError, TypeError, ValueError) as error:
                told = error if isinstance(error, StoreError) else StoreError(f"{place}: {error}")
                self._on_damage(told)
            else:
                self.ids.append(summary.id)
                self.recorded_at.append(summary.recorded_at)
                self._summaries.append(summary)
                self._lines.append((start, size))
        return True

    def fitting(self, filters: Mapping[str, Any]) -> Sequence[int]:
        """See ``Listing.fitting``."""
        return [
            position
            for position, one in enumerate(self._summaries)
            if all(getattr(one, name) == value for name, value in filters.items())
        ]

    def summaries(self, positions: Sequence[int]) -> list[TrajectorySummary]:
        """See ``Listing.summaries``."""
        return [self._summaries[position] for position in positions]

    def read(self, position: int) -> tuple[Row, TokenArrays]:
        """See ``Listing.read``."""
        start, size = self._lines[position]
        try:
            with open_regular(self.path) as file:
                file.seek(start)
                line = file.read(size)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror or error}") from error
        record = parse_line(f"the line at {start} of {self.path}", line)
        return read_live_row(self.path, record)
