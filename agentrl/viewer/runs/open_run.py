"""Open run: all that the viewer holds of one run, read as it is asked for.

The index knows where a trajectory lies. To find it otherwise, all shards of the run are listed,
which takes seconds of a large one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from agentrl.errors import Closing, DataError, StoreError
from agentrl.guards.parsing import mapping, parse_yaml
from agentrl.guards.regular_file import open_regular, read_regular
from agentrl.guards.secret_mask import SecretMask, beginning
from agentrl.store import (
    NoTrajectoryError,
    RunDirectory,
    RunState,
    RunWatch,
    TrajectoryReader,
    decode_trajectory,
)
from agentrl.store.disk import Stamp, stamps_of
from agentrl.store.json_text import from_json, to_json
from agentrl.store.logs import event_fault
from agentrl.store.shard import shard_file
from agentrl.store.shard_folders import RecentRows
from agentrl.store.trajectories.columns import EncodedRow
from agentrl.store.trajectories.files import find_shard_row
from agentrl.store.trajectories.listing import LiveListing
from agentrl.types import Trajectory
from agentrl.viewer.analysis.blame import BlameRow
from agentrl.viewer.analysis.spans import Span
from agentrl.viewer.index import RunIndex
from agentrl.viewer.notes import NoteBook
from agentrl.viewer.pieces import TokenPieces, has_marks, stage_pieces, without_secrets
from agentrl.viewer.runs.metrics_table import AppendedLines, MetricsTable
from agentrl.viewer.runs.phase_table import PhaseTable
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.viewer_error import not_found

Find = Callable[[str, bool], Path | None]
"""Finds the file with the newest record of an id, or None; looks at the run's files before where
the second is true."""


class RunReader(TrajectoryReader):
    """A reader whose ``row`` is quick, and may be asked from any thread, as analyses do.

    Args:
        run: the run.
        lock: of the run.
        find: finds a trajectory.
    """

    def __init__(self, run: RunDirectory, lock: threading.RLock, find: Find) -> None:
        super().__init__(run)
        self._lock = lock
        self._find = find
        self._live_files: dict[Path, LiveListing] = {}
        self._recent = RecentRows(find_shard_row)

    def row(self, trajectory_id: str) -> EncodedRow:
        """See ``TrajectoryReader.row``."""
        with self._lock:
            # First as the index has it, which costs nothing, then after a look at the run's files.
            for looking in (False, True):
                path = self._find(trajectory_id, looking)
                if path is None:
                    # it came a moment ago, or was dropped
                    continue
                try:
                    return self._read_of(path, trajectory_id)
                except StoreError:
                    # it was sealed since, or its shard was rewritten
                    if looking:
                        raise
            raise self._missing(trajectory_id)

    def _read_of(self, path: Path, trajectory_id: str) -> EncodedRow:
        if path.suffix == ".jsonl":
            return self._live_row(path, trajectory_id)
        columns, arrays = self._recent.get(path, trajectory_id)
        return dict(columns), arrays

    def _live_row(self, path: Path, trajectory_id: str) -> EncodedRow:
        self._live_files = {
            own: one for own, one in self._live_files.items() if own.is_file()
        }
        listing = self._live_files.setdefault(path, LiveListing(path, self._pass_over))
        listing.grow()
        ids = [own for own, _ in listing.places()]
        if trajectory_id not in ids:
            raise StoreError(f"{path} has no trajectory {trajectory_id!r} any more")
        return listing.read(len(ids) - 1 - ids[::-1].index(trajectory_id))


_SHARDS = 100_000
"""Of all runs whose rows are remembered."""


def count_trajectories(run: RunDirectory) -> int:
    """How many rows the files of a run have now.

    A trajectory that a resumed run played again counts twice, as it lies on disk.
    """
    sealed = stamps_of(run.sealed_folder.glob("step=*/*.parquet"))
    live = run.live_folder.glob("step=*/*.jsonl")
    rows = sum(_rows(path, stamp) for path, stamp in sealed.items())
    return rows + sum(map(_lines, live))


@lru_cache(maxsize=_SHARDS)
def _rows(path: Path, stamp: Stamp | None) -> int:
    """The rows of a shard in this state: ``store.keep`` may replace one by a smaller one."""
    try:
        with shard_file(path) as file:
            rows: int = file.metadata.num_rows
    except (OSError, pa.ArrowException):
        # Where store.keep left nothing of it, or it is damaged, which the run's own page says.
        return 0
    return rows


def _lines(path: Path) -> int:
    try:
        with open_regular(path) as file:
            return sum(
                block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")
            )
    except OSError:
        # sealed meanwhile
        return 0


_FRESH_S = 0.3
_WorstTokens = dict[tuple[int, str | None], BlameRow | None]


class OpenRun(Closing):
    """One run. ``lock`` guards all but ``notes``: requests come from several threads.

    Args:
        directory: the run.
        key: what requests name it by.
        name: what people call it; the name of its folder where empty.
    """

    closing = "closing the index"

    def __init__(self, directory: RunDirectory, key: str = "", name: str = "") -> None:
        self.directory = directory
        self.key = key
        self.name = name or directory.root.name
        self.lock = threading.RLock()
        self.metrics = MetricsTable(directory.metrics_path)
        self.phases = PhaseTable(directory.phases_path)
        self.notes = NoteBook(directory.root / "notes")
        self._event_lines = AppendedLines(directory.events_path)
        self._events: list[dict[str, Any]] = []
        self._watch = RunWatch(directory)
        self.used_at = 0.0
        """When a request asked for this run last, by the monotonic clock."""
        self._refreshed_at = -_FRESH_S
        self._mask = SecretMask()
        self._damage: list[str] = []
        self._settings: tuple[Stamp | None, Mapping[str, Any], str] | None = None
        self._worst_tokens: tuple[object, _WorstTokens] = (None, {})
        self.parts: dict[tuple[str, float], list[Span]] = {}
        """Of the episodes of the step that was shown last, by id and ``recorded_at``."""
        self.read_of = (0, 0)
        """Of the comparison that was asked for last: trajectories that it has read, of how many."""

    @cached_property
    def reader(self) -> TrajectoryReader:
        """Of its trajectories.

        Raises:
            StoreError: this agentrl cannot read the run.
        """
        run = RunDirectory.open(self.directory.root)
        return RunReader(run, self.lock, self._file_of)

    @cached_property
    def _index(self) -> RunIndex:
        return RunIndex(RunDirectory.open(self.directory.root))

    def index(self) -> RunIndex:
        """Finds, sorts and counts its trajectories; knows those that ended a moment ago.

        Raises:
            StoreError: the run is not there, or cannot be read.
        """
        self.refresh_index(_FRESH_S)
        return self._index

    def refresh_index(self, patience_s: float = 0.0) -> int:
        """Takes what was appended, unless that was done less than ``patience_s`` ago; how many
        trajectories are new or changed.
        """
        with self.lock:
            index = self._index
            # A page asks for several things at once: one look at the files serves all of them.
            if time.monotonic() - self._refreshed_at < patience_s:
                return 0
            changed = index.refresh()
            self._refreshed_at = time.monotonic()
            return changed

    def _file_of(self, trajectory_id: str, looking: bool) -> Path | None:
        self.refresh_index(0.0 if looking else _FRESH_S)
        return self._index.file_of(trajectory_id)

    @property
    def worst_tokens(self) -> _WorstTokens:
        """By step and stage (``views.run_view``); those of steps that are no more are gone."""
        # The metrics begin again where the run goes back, or another one is in its place.
        if self._worst_tokens[0] is not self.metrics.stages:
            self._worst_tokens = (self.metrics.stages, {})
        return self._worst_tokens[1]

    def settings(self) -> tuple[Mapping[str, Any], str]:
        """``config.resolved.yaml`` as it is now, and why it cannot be read; where there is none,
        nothing of either.
        """
        path = self.directory.config_path
        stamp = stamps_of([path]).get(path)
        if self._settings is None or self._settings[0] != stamp:
            num_faults = len(self._damage)
            found = self._loaded(path, parse_yaml)
            self._settings = (stamp, found, "".join(self._damage[num_faults:]))
        return self._settings[1:]

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings; empty where none can be read."""
        return self.settings()[0]

    @property
    def summary(self) -> Mapping[str, Any]:
        """``summary.json``; empty while the run has none that can be read."""
        return self._loaded(self.directory.summary_path, from_json)

    def _loaded(self, path: Path, parse: Callable[[bytes], Any]) -> Mapping[str, Any]:
        try:
            found = parse(read_regular(path))
            if found is not None and not isinstance(found, Mapping):
                raise ValueError(f"it holds no mapping, but a {type(found).__name__}")
            return found or {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._damage.append(f"{path} cannot be read: {error}")
            return {}

    def setting(self, name: str) -> Any:
        """A key of the run's own ``store`` section; None where nobody knows."""
        return mapping(self.config.get("store")).get(name)

    def setting_note(self, name: str) -> str:
        """That key for a message; empty where nobody knows."""
        value = self.setting(name)
        return "" if value is None else f" (this run has store.{name}: {value})"

    def events(self) -> list[dict[str, Any]]:
        """The lines of ``events.jsonl`` so far."""
        restarted, taken = self._event_lines.take()
        found = list(taken)
        faults = list(map(event_fault, found))
        self._damage += filter(None, faults)
        records = [one for one, fault in zip(found, faults, strict=True) if not fault]
        self._events = records if restarted else [*self._events, *records]
        return self._events

    def num_trajectories(self) -> int:
        """How many trajectories it has now; makes no index where nobody has asked for one yet."""
        if "_index" in self.__dict__:
            return self.index().page(limit=0).total
        return count_trajectories(self.directory)

    def state(self) -> RunState:
        """Whether it runs, by its heartbeat."""
        with self.lock:
            return self._watch.look()

    def damage(self) -> list[str]:
        """What of the run cannot be read, and was passed over."""
        own = [
            *self._damage,
            *self.reader.damage,
            *self.index().damage(),
            *self.notes.damage,
        ]
        read = (self.metrics.damage, self.phases.damage, self._event_lines.damage)
        return list(dict.fromkeys([*own, *(one for damage in read for one in damage)]))

    def row(self, trajectory_id: str) -> StoredRow:
        """One trajectory as it is stored, with what was learned of it; ids of masked secrets are
        ``REDACTED_ID``.

        Raises:
            NoTrajectoryError: the run has none of this id.
            StoreError: its file is damaged.
        """
        # Of several records of an id the newest counts, and what was learned of it alone.
        columns, arrays = self._stored(trajectory_id)
        learned = self.reader.learned(trajectory_id, columns["recorded_at"])
        row = StoredRow(columns, arrays, learned)
        if not has_marks(columns):
            return row
        try:
            pieces = self.pieces(columns["stage"])
        except DataError:
            pieces = None
        return without_secrets(row, pieces, self._mask)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One trajectory as objects; otherwise as ``row``, with the ids of masked secrets too."""
        return decode_trajectory(*self._stored(trajectory_id))

    def shown(self, row: StoredRow) -> Trajectory:
        """The trajectory of ``row`` as objects, without the ids that it hides."""
        return decode_trajectory({**row.columns, "turns": to_json(row.turns)}, row.arrays)

    def pieces(self, stage: str) -> TokenPieces:
        """The tokens' texts, by a stage's tokenizer.

        Raises:
            DataError: there is no tokenizer here; the message says why.
        """
        return stage_pieces(self.directory, stage)

    def _stored(self, trajectory_id: str) -> EncodedRow:
        try:
            return self.reader.row(trajectory_id)
        except NoTrajectoryError as error:
            raise NoTrajectoryError(
                f"the run {self.name} has no trajectory {trajectory_id[:100]!r}{error.why}"
            ) from error

    def blob(self, sha256: str) -> bytes:
        """The bytes that the run keeps under a hash.

        Raises:
            ViewerError: it has none of this name, or what is there has another hash.
        """
        try:
            return self.directory.read_blob(sha256)
        except StoreError as error:
            raise not_found(beginning(str(error), 300)) from error

    def close(self) -> None:
        """Ends what it holds open and forgets what it read; the next request reads it again."""
        with self.lock:
            if (index := self.__dict__.pop("_index", None)) is not None:
                index.close()
            self.__dict__.pop("reader", None)
            self._refreshed_at = -_FRESH_S
