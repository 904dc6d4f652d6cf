"""Listings: what a reader remembers of a file of trajectories, and what a list shows of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.guards.regular_file import open_regular
from agentrl.store.disk import os_refusals
from agentrl.store.json_text import from_json
from agentrl.store.jsonl import Damage, JsonFollower, parse_line
from agentrl.store.step_files import with_frames
from agentrl.store.trajectories.columns import SUMMARY_COLUMNS, EncodedRow, chosen
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
    errors: Mapping[str, int] | None
    finish_reason: str | None
    info_numbers: Mapping[str, float] | None
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
    own = chosen(row, SUMMARY_COLUMNS)
    for name in ("agents", "tools"):
        own[name] = tuple(own[name])
    for name in ("rewards", "errors", "info_numbers"):
        own[name] = own[name] and from_json(own[name])
    return TrajectorySummary(**own)


class FileListing(Protocol):
    """The trajectories of one file, by their position in it."""

    path: Path

    def places(self) -> Iterable[tuple[str, float]]:
        """Id and time of recording of each."""
        ...

    def summaries(self, positions: Sequence[int]) -> list[TrajectorySummary]:
        """What a list shows of some of them."""
        ...

    def read(self, position: int) -> EncodedRow:
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

    def places(self) -> Iterable[tuple[str, float]]:
        """See ``FileListing.places``."""
        columns = (self._table[name].to_pylist() for name in ("id", "recorded_at"))
        return zip(*columns, strict=True)

    def summaries(self, positions: Sequence[int]) -> list[TrajectorySummary]:
        """See ``FileListing.summaries``."""
        return list(
            map(summary_of, self._table.take(pa.array(positions, pa.int64())).to_pylist())
        )

    def read(self, position: int) -> EncodedRow:
        """See ``FileListing.read``."""
        return read_shard_row(self.path, position)


class LiveListing:
    """Of a live file, of which each look parses what was appended.

    Args:
        path: the lines' file.
        on_damage: is told of a line that cannot be read, which is then passed over.
    """

    def __init__(self, path: Path, on_damage: Damage) -> None:
        self.path = path
        self._on_damage = on_damage
        self._follower = JsonFollower(path)
        self._summaries: list[TrajectorySummary] = []
        self._starts: list[int] = []
        """Where each trajectory's line starts."""

    def grow(self) -> bool:
        """Take in what was appended, or all of a file that is another one now; whether anything
        changed.
        """
        same, records = self._follower.look(self._on_damage)
        before = len(self._starts)
        if not same:
            self._summaries.clear()
            self._starts.clear()
        for start, record in with_frames(self.path, records, self._on_damage):
            try:
                summary = summary_of(record)
            except (StoreError, TypeError, ValueError) as error:
                self._on_damage(StoreError(f"the line at {start} of {self.path}: {error}"))
            else:
                self._summaries.append(summary)
                self._starts.append(start)
        return not same or len(self._starts) != before

    def places(self) -> Iterable[tuple[str, float]]:
        """See ``FileListing.places``."""
        return [(one.id, one.recorded_at) for one in self._summaries]

    def summaries(self, positions: Sequence[int]) -> list[TrajectorySummary]:
        """See ``FileListing.summaries``."""
        return [self._summaries[position] for position in positions]

    def read(self, position: int) -> EncodedRow:
        """See ``FileListing.read``."""
        start = self._starts[position]
        with os_refusals(f"{self.path} cannot be read"), open_regular(self.path) as file:
            file.seek(start)
            line = file.readline()
        record = parse_line(f"the line at {start} of {self.path}", line)
        return read_live_row(self.path, record)
