"""Index sources: which files a run has, and what the index takes from them.

A row is a tuple of the values of ``columns.COLUMNS``, in that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from agentrl.errors import StoreError
from agentrl.guards.printable import encodable
from agentrl.store import RunDirectory
from agentrl.store.disk import stamps_of
from agentrl.store.json_text import from_json, to_json
from agentrl.store.jsonl import DamageList, JsonFollower
from agentrl.store.shard_folders import ShardFolders
from agentrl.store.step_files import frame_of
from agentrl.store.trajectories.columns import COLUMNS as STORED
from agentrl.store.trajectories.columns import chosen
from agentrl.store.trajectories.files import read_columns
from agentrl.viewer.index.columns import COLUMNS, NULLABLE, SEPARATOR, joined
from agentrl.viewer.notes import NoteBook

Row = tuple[Any, ...]


class Appended(NamedTuple):
    """The whole lines of a file behind an offset.

    Args:
        records: their objects.
        end: the offset behind them.
        damage: what could not be read, and was passed over.
    """

    records: list[dict[str, Any]]
    end: int
    damage: str

    def rows(self) -> tuple[list[Row], str]:
        """Those that are rows of the index, and what could not be read, these included."""
        rows = []
        damage = [self.damage] * bool(self.damage)
        for record in self.records:
            try:
                frame_of("it", record)
                rows.append(row_of(record))
            except (StoreError, ValueError, TypeError, AttributeError, OverflowError) as error:
                damage.append(f"trajectory {str(record.get('id'))[:200]!r}: {error}")
        return rows, "; ".join(damage)


def shard_rows(path: Path) -> list[Row]:
    """The rows of a sealed shard, in order.

    Raises:
        StoreError: the file is no shard.
    """
    table = read_columns(path, tuple(COLUMNS))
    try:
        columns = [_values(name, table[name]) for name in COLUMNS]
    except (ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read as a shard: {error}") from error
    return list(zip(*columns, strict=True))


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_list(column.type):
        text = pc.binary_join(column.combine_chunks(), SEPARATOR)
        around = pc.binary_join_element_wise(SEPARATOR, text, SEPARATOR, "")
        column = pc.if_else(pc.equal(pc.fill_null(text, ""), ""), "", around)
    if column.null_count and name not in NULLABLE:
        raise ValueError(f"its column {name!r} has a null")
    values: list[Any] = column.to_pylist()
    return [_numbers_alone(value) for value in values] if name == "rewards" else values


def _numbers_alone(rewards: str) -> str:
    """Reward parts as SQLite compares them: a NaN, which the store marks, is no number."""
    if rewards == "{}":
        return "{}"
    kept = {
        name: part
        for name, part in from_json(rewards).items()
        if isinstance(part, int | float) and math.isfinite(part)
    }
    return to_json(kept)


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of a line of a live file, which has the columns of a list and no texts.

    Raises:
        StoreError: it lacks a column.
        ValueError: a column has a value of another type.
    """
    if not record.get("id"):
        raise ValueError("a trajectory needs an id")
    values = []
    for name, value in chosen(record, COLUMNS).items():
        if value is None:
            if name not in NULLABLE:
                raise ValueError(f"its column {name!r} is null")
        elif COLUMNS[name] == "list":
            value = encodable(joined(value))
        else:
            value = encodable(value) if isinstance(value, str) else value
            value = pa.scalar(value, STORED[name].type).as_py()
        values.append(_numbers_alone(value) if name == "rewards" else value)
    return tuple(values)


def appended(path: Path, offset: int) -> Appended:
    """What was appended to a file of lines behind ``offset``; all of it where it was cut back."""
    damage = DamageList()
    follower = JsonFollower(path, offset)
    _, found = follower.look(damage.add)
    records = [record for _, record in found]
    return Appended(records, follower.offset, "; ".join(damage))


LedgerRow = tuple[int, int, int | None, str]


def ledger_rows(records: list[dict[str, Any]]) -> list[LedgerRow]:
    """Where trajectories are, by the newest of the given rows of a ledger: group index, rollout
    index, the step that trained it, why it was dropped.
    """
    newest: dict[tuple[int, int], LedgerRow] = {}
    for record in records:
        group = record.get("group_index")
        rollouts = record.get("rollout_indices")
        if not (isinstance(rollouts, list) and _is_place(group) and all(map(_is_place, rollouts))):
            # a row of another kind
            continue
        to = record.get("to")
        step = record.get("step")
        trained = step if to == "trained" and _is_place(step) else None
        dropped = str(record.get("reason") or "dropped") if to == "dropped" else ""
        for rollout in rollouts:
            newest[group, rollout] = (group, rollout, trained, dropped)
    return list(newest.values())


def _is_place(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) < 2**63


def note_labels(run: RunDirectory) -> tuple[dict[str, str], list[str]]:
    """The labels of each trajectory that notes gave it, as a list column holds them, and what could
    not be read of the notes.
    """
    book = NoteBook(run.notes_folder)
    labels: dict[str, set[str]] = {}
    for note in book.all():
        labels.setdefault(note.trajectory, set()).update(note.labels)
    return {key: joined(sorted(own)) for key, own in labels.items() if key and own}, book.damage


_WHOLE_EVERY = 10
_NEWEST_STEPS = 16


class FileState(NamedTuple):
    """Size in bytes, and time of change in nanoseconds."""

    size: int
    modified: int


Files = Mapping[str, FileState]
"""By path, relative to the run."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a run at one time; equal ones mean that nothing was written in between."""

    live: Files
    sealed: Files
    notes: Files
    ledger: FileState | None


class Listing:
    """Lists a run's files; a folder of shards that did not change is not listed again.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._folders = ShardFolders(run.sealed_folder)
        self._sealed: Files = {}
        # One look in _WHOLE_EVERY asks every folder of a step, the others the newest alone: an
        # older step is hardly ever written again.
        self._looks = 0
        self._live_before: Set[str] = frozenset()

    def snapshot(self) -> Snapshot:
        """The files now.

        Raises:
            OSError: a folder cannot be read.
        """
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        live = self._states(self._run.live_folder.glob("step=*/*.jsonl"))
        sealed_some = not self._live_before <= live.keys()
        self._live_before = live.keys()
        whole = sealed_some or self._looks % _WHOLE_EVERY == 0
        self._looks += 1
        added, gone = self._folders.look(None if whole else _NEWEST_STEPS)
        if added or gone:
            left = {self._name(path) for path in gone}
            kept = {name: state for name, state in self._sealed.items() if name not in left}
            self._sealed = kept | self._states(added)
        notes = self._states(self._run.notes_folder.glob("*.jsonl"))
        ledger = self._states([self._run.ledger_path])
        return Snapshot(live, self._sealed, notes, next(iter(ledger.values()), None))

    def _states(self, paths: Iterable[Path]) -> dict[str, FileState]:
        """Those of the files that are still there, sorted by path."""
        return {
            self._name(path): FileState(stamp.size, stamp.modified_ns)
            for path, stamp in stamps_of(paths).items()
            # else it was sealed or removed meanwhile
            if stamp is not None and not path.name.startswith(".")
        }

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._run.root))
