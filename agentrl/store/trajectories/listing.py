"""Listings: what a reader remembers of a file of trajectories, and what a list shows of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from agentrl.errors import StoreError
from agentrl.guards.regular_file import open_regular
from agentrl.store.json_text import from_json
from agentrl.store.jsonl import Damage, JsonFollower, parse_line
from agentrl.store.step_files import with_frames
from agentrl.store.trajectories.columns import SUMMARY_COLUMNS, Row, TokenArrays, chosen
from agentrl.store.trajectories.files import read_columns, read_live_row, read_shard_row
from agentrl.types import Purpose, StatusKind


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """What a list shows of a trajectory; the fields are ``columns.SUMMARY_COLUMNS``."""

    id: str
    group_index: int
    rollout_index: int
    attempt: int
    group_size: int
    label: str
    purpose: Purpose
    stage: str
    env: str
    agents: tuple[str, ...]
    step: int
    task_id: str
    data_source: str
    status: StatusKind
    status_reason: str
    reward: float | None
    rewards: Mapping[str, float]
    num_turns: int
    num_calls: int | None
    num_tool_errors: int | None
    tools: tuple[str, ...]
    num_policy_tokens: int
    num_tokens: int
    policy_version_min: int | None
    policy_version_max: int | None
    started_at: float
    ended_at: float
    recorded_at: float


def summary_of(row: Mapping[str, Any]) -> TrajectorySummary:
    """The summary of a stored row.

    Raises:
        StoreError: the row lacks a column.
        TypeError, ValueError: a column has a value of another type.
    """
    return _summary(*chosen(row, SUMMARY_COLUMNS).values())


def summaries_of(columns: Mapping[str, Sequence[Any]]) -> list[TrajectorySummary]:
    """The summaries of rows that are given by column.

    Raises:
        TypeError, ValueError: a column has a value of another type.
    """
    ordered = [columns[name] for name in SUMMARY_COLUMNS]
    return [_summary(*row) for row in zip(*ordered, strict=True)]


def _summary(*values: Any) -> TrajectorySummary:
    """The summary of the values of ``SUMMARY_COLUMNS``, in their order."""
    row = list(values)
    row[_AGENTS] = tuple(row[_AGENTS])
    row[_TOOLS] = tuple(row[_TOOLS])
    row[_REWARDS] = from_json(row[_REWARDS])
    return TrajectorySummary(*row)


_AGENTS = SUMMARY_COLUMNS.index("agents")
_TOOLS = SUMMARY_COLUMNS.index("tools")
_REWARDS = SUMMARY_COLUMNS.index("rewards")


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
        self._table = read_columns(path, SUMMARY_COLUMNS)
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

    def __init__(self, path: Path, on_damage: Damage) -> None:
        self.path = path
        self.ids: list[str] = []
        self.recorded_at: list[float] = []
        self._on_damage = on_damage
        self._summaries: list[TrajectorySummary] = []
        self._starts: list[int] = []
        """Where each trajectory's line starts."""
        self._follower = JsonFollower(path)

    def grow(self) -> bool:
        """Take in what was appended; False where the file is another one now, or gone, so that
        this listing is of no more use.
        """
        same, records = self._follower.look(self._on_damage)
        if not same:
            return False
        for start, record in with_frames(self.path, records, self._on_damage):
            try:
                summary = summary_of(record)
            except (StoreError, TypeError, ValueError) as error:
                self._on_damage(StoreError(f"the line at {start} of {self.path}: {error}"))
            else:
                self.ids.append(summary.id)
                self.recorded_at.append(summary.recorded_at)
                self._summaries.append(summary)
                self._starts.append(start)
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
        start = self._starts[position]
        try:
            with open_regular(self.path) as file:
                file.seek(start)
                line = file.readline()
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror or error}") from error
        record = parse_line(f"the line at {start} of {self.path}", line)
        return read_live_row(self.path, record)
