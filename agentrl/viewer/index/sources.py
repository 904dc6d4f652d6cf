"""Index sources: which files a run has, and what the index takes from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from agentrl.errors import StoreError
from agentrl.guards.printable import encodable
from agentrl.guards.secret_mask import beginning
from agentrl.store import RunDirectory
from agentrl.store.annotations.annotation import StoredAnnotation, stored_annotation
from agentrl.store.disk import stamps_of
from agentrl.store.json_text import from_json
from agentrl.store.jsonl import DamageList, JsonFollower
from agentrl.store.shard_folders import ShardFolders
from agentrl.store.step_files import frame_of
from agentrl.store.trajectories.columns import COLUMNS as STORED
from agentrl.store.trajectories.columns import chosen
from agentrl.store.trajectories.files import read_columns
from agentrl.viewer.index.fields import FIELDS, SEPARATOR, Field, found_name, joined
from agentrl.viewer.notes import NoteBook

_T = TypeVar("_T")
_MOST = sys.float_info.max
_WHOLE = {name for name, field in FIELDS.items() if field.kind == "integer"}
_LARGEST_WHOLE = 2**53
_DAMAGE = (StoreError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
KEPT = tuple(field for field in FIELDS.values() if field.stored)
"""The fields that shards have."""
_NUMBERS = {"reward": "rewards", "error": "errors", "info": "info_numbers"}
"""The columns with numbers that runs name, by the kind of ``FOUND``."""
_COLUMNS = tuple(dict.fromkeys([*(field.stored for field in KEPT), *_NUMBERS.values()]))


class Row(NamedTuple):
    """A trajectory of a file.

    Args:
        values: of ``KEPT``, in that order.
        numbers: by the name of their field; the same object for many rows.
    """

    values: tuple[Any, ...]
    numbers: Mapping[str, float]


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
        return self._read(row_of)

    def annotations(self) -> tuple[list[StoredAnnotation], str]:
        """Those that are annotations, without their arrays, and what could not be read."""
        return self._read(lambda record: stored_annotation(record, {}))

    def _read(self, read: Callable[[dict[str, Any]], _T]) -> tuple[list[_T], str]:
        found = []
        damage = [self.damage] * bool(self.damage)
        for record in self.records:
            try:
                frame_of("it", record)
                found.append(read(record))
            except _DAMAGE as error:
                damage.append(
                    f"trajectory {beginning(str(record.get('id')), 200)!r}: {error}"
                )
        return found, "; ".join(damage)


def shard_rows(path: Path) -> list[Row]:
    """The rows of a sealed shard, in order.

    Raises:
        StoreError: the file is no shard.
    """
    table = read_columns(path, _COLUMNS)
    try:
        columns = [_values(field, table[field.stored]) for field in KEPT]
        texts = (table[name].to_pylist() for name in _NUMBERS.values())
        numbers = [_numbers(*own) for own in zip(*texts, strict=True)]
    except (*_DAMAGE, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read as a shard: {error}") from error
    return list(map(Row, zip(*columns, strict=True), numbers))


def _values(field: Field, column: pa.ChunkedArray) -> list[Any]:
    if field.name == "error":
        return list(map(_kinds, column.to_pylist()))
    if pa.types.is_list(column.type):
        text = pc.binary_join(column.combine_chunks(), SEPARATOR)
        around = pc.binary_join_element_wise(SEPARATOR, text, SEPARATOR, "")
        column = pc.if_else(pc.equal(pc.fill_null(text, ""), ""), "", around)
    if column.null_count and not field.nullable:
        raise ValueError(f"its column {field.stored!r} has a null")
    values: list[Any] = column.to_pylist()
    return values


@lru_cache(4096)
def _kinds(errors: str | None) -> str | None:
    return errors and encodable(joined(from_json(errors)))


def _numbers(*texts: str | None) -> Mapping[str, float]:
    """The numbers in the JSON of ``_NUMBERS``, by the name of their field."""
    # many trajectories have equal ones, where they are short
    is_short = sum(len(text) for text in texts if text) < 1000
    return (_parsed if is_short else _parsed.__wrapped__)(*texts)


@lru_cache(4096)
def _parsed(*texts: str | None) -> Mapping[str, float]:
    return {
        name: number
        for kind, text in zip(_NUMBERS, texts, strict=True)
        if text and text != "{}"
        for name, number in numbers_of(kind, from_json(text)).items()
    }


def numbers_of(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values that are finite numbers, by the name of their field; a field of whole
    numbers takes no others.

    Args:
        kind: one of ``FOUND``.
        values: JSON by name.
    """
    return {
        field: float(value)
        for name, value in values.items()
        if isinstance(value, int | float)
        and abs(value) <= _MOST
        and (field := found_name(kind, name))
        and (field not in _WHOLE or (value == int(value) and abs(value) < _LARGEST_WHOLE))
    }


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of a line of a live file, which has the columns of a list and no texts.

    Raises:
        StoreError: it lacks a column.
        ValueError: a column has a value of another type.
    """
    if not record.get("id"):
        raise ValueError("a trajectory needs an id")
    own = chosen(record, _COLUMNS)
    values = []
    for field in KEPT:
        value = own[field.stored]
        if value is None:
            if not field.nullable:
                raise ValueError(f"its column {field.stored!r} is null")
        elif field.name == "error":
            value = _kinds(value)
        elif field.kind == "list":
            value = encodable(joined(value))
        else:
            value = encodable(value) if isinstance(value, str) else value
            value = pa.scalar(value, STORED[field.stored].type).as_py()
        values.append(value)
    return Row(tuple(values), _numbers(*(own[name] for name in _NUMBERS.values())))


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
        if not (
            isinstance(rollouts, list)
            and _is_place(group)
            and all(map(_is_place, rollouts))
        ):
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
    return {
        key: joined(sorted(own)) for key, own in labels.items() if key and own
    }, book.damage


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
    """The files of a run at one time; equal ones mean that nothing was written in between.

    Args:
        run: which run it is (``run_identity``).
    """

    run: str
    live: Files
    sealed: Files
    live_annotations: Files
    sealed_annotations: Files
    resumes: Files
    notes: Files
    ledger: FileState | None


def run_identity(run: RunDirectory) -> str:
    """Which run lies in the folder: its id, which a resume keeps; of one that has none, when its
    ``run.json`` was written.
    """
    own = run.read_record().get("id")
    return str(own) if own else f"written {run.record_path.stat().st_mtime_ns}"


class Listing:
    """Lists a run's files; a folder of shards that did not change is not listed again.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._trajectories = _Kind(run.root, run.live_folder, run.sealed_folder)
        self._annotations = _Kind(
            run.root, run.live_annotations_folder, run.sealed_annotations_folder
        )

    def snapshot(self) -> Snapshot:
        """The files now.

        Raises:
            OSError: a folder cannot be read.
            StoreError: ``run.json`` cannot be.
        """
        root = self._run.root
        run = run_identity(self._run)
        # What is annotated was stored before: an annotation never comes before its trajectory.
        resumes = _states(root, [self._run.resumes_path])
        annotations = self._annotations.look()
        trajectories = self._trajectories.look()
        notes = _states(root, self._run.notes_folder.glob("*.jsonl"))
        ledger = _states(root, [self._run.ledger_path])
        return Snapshot(
            run,
            *trajectories,
            *annotations,
            resumes,
            notes,
            next(iter(ledger.values()), None),
        )


class _Kind:
    """The live files and the shards of one kind."""

    def __init__(self, root: Path, live: Path, sealed: Path) -> None:
        self._root = root
        self._live = live
        self._folders = ShardFolders(sealed)
        self._sealed: Files = {}
        # One look in _WHOLE_EVERY asks every folder of a step, the others the newest alone: an
        # older step is hardly ever written again.
        self._looks = 0
        self._live_before: Set[str] = frozenset()

    def look(self) -> tuple[Files, Files]:
        """Those that are live, and those that are sealed."""
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        live = _states(self._root, self._live.glob("step=*/*.jsonl"))
        sealed_some = not self._live_before <= live.keys()
        self._live_before = live.keys()
        whole = sealed_some or self._looks % _WHOLE_EVERY == 0
        self._looks += 1
        added, gone = self._folders.look(None if whole else _NEWEST_STEPS)
        if added or gone:
            left = {_name(self._root, path) for path in gone}
            kept = {name: state for name, state in self._sealed.items() if name not in left}
            self._sealed = kept | _states(self._root, added)
        return live, self._sealed


def _states(root: Path, paths: Iterable[Path]) -> dict[str, FileState]:
    """Those of the files that are still there, sorted by path."""
    return {
        _name(root, path): FileState(stamp.size, stamp.modified_ns)
        for path, stamp in stamps_of(paths).items()
        # else it was sealed or removed meanwhile
        if stamp is not None and not path.name.startswith(".")
    }


def _name(root: Path, path: Path) -> str:
    return str(path.relative_to(root))
