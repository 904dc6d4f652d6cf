"""Index growth: brings what was written to a run into its index, in a transaction or several."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.store.annotations.annotation import StoredAnnotation
from agentrl.store.annotations.files import read_values
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.jsonl import DamageList
from agentrl.viewer.index.database import SORT_INDICES
from agentrl.viewer.index.fields import FIELDS, FOUND, LEARNED, in_sql
from agentrl.viewer.index.sources import (
    KEPT,
    Appended,
    Files,
    FileState,
    LedgerRow,
    Row,
    Snapshot,
    appended,
    ledger_rows,
    note_labels,
    numbers_of,
    shard_rows,
)

_SHARDS_A_COMMIT = 64
_MANY_MOVES = 2000
_READERS = 4
_LEDGER = "ledger.jsonl"
_MOST_FOUND = 200
"""Fields that a run may name itself; a row is no longer, and SQLite takes 2,000 columns at most."""
_KEPT = [field.column for field in KEPT]
_OF_INFO = [name for name, field in FIELDS.items() if field.found.startswith("info.")]
# What the ledger says is of the record that finished, not of one that failed and was played again.
_JOIN = (
    "UPDATE trajectories SET trained_step = ledger.trained_step, "
    '"drop" = ledger.drop_reason, change = :change FROM ledger '
    'WHERE trajectories."group" = ledger.group_index '
    "AND trajectories.rollout = ledger.rollout_index "
    "AND purpose = 'train' AND status NOT IN ('failed', 'cancelled') "
    "AND (trajectories.trained_step IS NOT ledger.trained_step "
    'OR trajectories."drop" <> ledger.drop_reason)'
)


class Growth:
    """One look at a run's files, by the one process that holds the writer's lock.

    Args:
        run: the run.
        snapshot: its files.
        writer: the index's connection for writing.

    Attributes:
        removed: whether trajectories went, or shards were rewritten.
    """

    def __init__(
        self, run: RunDirectory, snapshot: Snapshot, writer: sqlite3.Connection
    ) -> None:
        self._run = run
        self._files = snapshot
        self._sql = writer
        self._known: dict[str, tuple[int, FileState]] = {
            path: (key, FileState(size, modified))
            for key, path, size, modified in writer.execute(
                "SELECT key, path, size, modified FROM files"
            )
        }
        (last,) = writer.execute(
            "SELECT value FROM counters WHERE name = 'change'"
        ).fetchone()
        self._first = last + 1
        self._change = last + 1
        self._newest_file = max((key for key, _ in self._known.values()), default=0)
        self._found = dict.fromkeys(found_names(writer))
        self.removed = False

    def take(self) -> int:
        """Take everything that is new; the number of trajectories that are new or changed.

        Raises:
            sqlite3.Error: the index is damaged or takes nothing more.
        """
        try:
            self._sql.execute("BEGIN IMMEDIATE")
            # What is sealed meanwhile is in both: of two equal records the one that stays counts,
            # and so the shard's comes last.
            annotations = self._appended_annotations()
            self._take_live()
            self._take_sealed()
            self._take_vanished()
            self._take_annotations(annotations)
            self._take_ledger()
            self._take_notes()
            # Last: to keep them while a large run is first taken costs more than all else of it.
            for statement in SORT_INDICES.values():
                self._sql.execute(statement)
            sql = "SELECT count(*) FROM trajectories WHERE change >= ?"
            (changed,) = self._sql.execute(sql, (self._first,)).fetchone()
            self._commit()
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise
        return int(changed)

    def _take_live(self) -> None:
        for path, state in self._files.live.items():
            if (new := self._appended(path, state)) is not None:
                rows, damage = new.rows()
                key, _ = self._file(path)
                self._put(rows, key)
                self._note_file(key, path, FileState(new.end, state.modified), damage)

    def _take_sealed(self) -> None:
        new = self._changed(self._files.sealed)
        if not new:
            return
        with ThreadPoolExecutor(_READERS, thread_name_prefix="index-shards") as readers:
            for start in range(0, len(new), _SHARDS_A_COMMIT):
                if start:
                    # so that a reader sees some, early
                    self._commit()
                    self._sql.execute("BEGIN IMMEDIATE")
                    self._change += 1
                part = new[start : start + _SHARDS_A_COMMIT]
                for path, (rows, damage) in zip(
                    part, readers.map(self._read, part), strict=True
                ):
                    key, known = self._file(path)
                    self._put(rows, key)
                    if known.modified:
                        # it was rewritten; what is still there was put just now
                        self._remove(key, self._change)
                        self.removed = True
                    self._note_file(key, path, self._files.sealed[path], damage)
        # it would keep what many shards took
        pa.default_memory_pool().release_unused()

    def _read(self, path: str) -> tuple[list[Row], str]:
        """The rows of a shard, or why it has none."""
        try:
            return shard_rows(self._run.root / path), ""
        except StoreError as error:
            return [], str(error)

    def _take_vanished(self) -> None:
        files = self._files
        present = {_LEDGER, *files.live, *files.sealed, *files.notes, *files.resumes}
        present |= {*files.live_annotations, *files.sealed_annotations}
        for path, (key, _) in self._known.items():
            if path not in present:
                self._remove(key)
                self._sql.execute("DELETE FROM files WHERE key = ?", (key,))

    def _appended_annotations(self) -> dict[str, Appended]:
        """By live file; read before the trajectories, so that these are there by then."""
        files = self._files
        if self._changed(files.resumes):
            # what a resume took back is no longer learned: all are taken anew
            gone = ", ".join(
                f"{in_sql(name)} = NULL" for name in (*self._learned, "annotated")
            )
            sql = f"UPDATE trajectories SET {gone}, change = ? WHERE annotated IS NOT NULL"
            self._sql.execute(sql, (self._change,))
            for path in (*files.live_annotations, *files.sealed_annotations):
                self._known[path] = (self._file(path)[0], FileState(0, 0))
        return {
            path: new
            for path, state in files.live_annotations.items()
            if (new := self._appended(path, state)) is not None
        }

    def _take_annotations(self, live: Mapping[str, Appended]) -> None:
        files = self._files
        found: list[StoredAnnotation] = []
        for path, new in live.items():
            own, damage = new.annotations()
            found += own
            state = FileState(new.end, files.live_annotations[path].modified)
            self._note_file(self._file(path)[0], path, state, damage)
        for path in self._changed(files.sealed_annotations):
            damage = ""
            try:
                found += read_values(self._run.root / path)
            except StoreError as error:
                damage = str(error)
            state = files.sealed_annotations[path]
            self._note_file(self._file(path)[0], path, state, damage)
        if not (found or self._changed(files.resumes)):
            return
        passed_over = DamageList()
        rollbacks = Rollbacks.readable(self._run, passed_over.add)
        for path, state in files.resumes.items():
            self._note_file(self._file(path)[0], path, state, "; ".join(passed_over))
        self._learn(found, rollbacks)

    def _learn(self, found: Sequence[StoredAnnotation], rollbacks: Rollbacks) -> None:
        """Puts the numbers of annotations to their trajectories; of several of a name the newest
        stays."""
        rows = []
        for stored in sorted(found, key=lambda stored: stored.recorded_at):
            values = stored.annotation.values
            if not isinstance(values, Mapping):
                continue
            stage = str(values.get("stage", ""))
            if rollbacks.took_back(stored.resumes, stage, stored.annotation.step):
                continue
            # the ledger has it
            own = {name: value for name, value in values.items() if name != "trained_step"}
            numbers = self._known_numbers(numbers_of("annotation", own))
            is_of_now = stored.resumes >= rollbacks.count
            time = stored.recorded_at
            key = (stored.annotation.trajectory_id, time, is_of_now, time)
            rows.append((tuple(numbers), (*numbers.values(), time, self._change, *key)))
        for names, same in groupby(rows, key=lambda row: row[0]):
            put = "".join(f"{in_sql(name)} = ?, " for name in names)
            self._sql.executemany(
                f"UPDATE trajectories SET {put}annotated = ?, change = ? WHERE id = ? "
                "AND coalesce(annotated, 0) <= ? AND (? OR recorded_at <= ?)",
                (values for _, values in same),
            )

    @property
    def _learned(self) -> list[str]:
        """The fields that annotations fill."""
        return [*LEARNED, *(name for name in self._found if name.startswith("annotation."))]

    def _known_numbers(self, numbers: Mapping[str, float]) -> Mapping[str, float]:
        """Those that are fields; new ones become columns, while the run has not too many."""
        new = [name for name in numbers if name not in FIELDS and name not in self._found]
        for name in new:
            # SQLite knows no case in names
            same = {one.lower() for one in self._found}
            if len(same) < _MOST_FOUND and name.lower() not in same:
                # a whole number comes back as one
                self._sql.execute(
                    f"ALTER TABLE trajectories ADD COLUMN {in_sql(name)} NUMERIC"
                )
                self._found[name] = None
        if not new:
            return numbers
        known = {**FIELDS, **self._found}
        return {name: one for name, one in numbers.items() if name in known}

    def _take_ledger(self) -> None:
        state = self._files.ledger
        moved: list[LedgerRow] = []
        if state is not None and (new := self._appended(_LEDGER, state)) is not None:
            moved = ledger_rows(new.records)
            self._sql.executemany(
                "INSERT INTO ledger VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "trained_step = excluded.trained_step, drop_reason = excluded.drop_reason",
                moved,
            )
            key, _ = self._file(_LEDGER)
            self._note_file(key, _LEDGER, FileState(new.end, state.modified), new.damage)
        change = {"change": self._change}
        # One statement over all rows costs less than thousands over one row each.
        if len(moved) > _MANY_MOVES:
            self._sql.execute(_JOIN, change)
            return
        new_rows = {**change, "first": self._first}
        self._sql.execute(f"{_JOIN} AND change >= :first", new_rows)
        self._sql.executemany(
            f"{_JOIN} AND ledger.group_index = :group AND ledger.rollout_index = :rollout",
            (
                {**change, "group": group, "rollout": rollout}
                for group, rollout, *_ in moved
            ),
        )

    def _take_notes(self) -> None:
        if all(self._file(path)[1] == state for path, state in self._files.notes.items()):
            sql = "SELECT 1 FROM trajectories WHERE change >= ? LIMIT 1"
            none_new = self._sql.execute(sql, (self._first,)).fetchone() is None
            gone = any(
                p.startswith("notes/") and p not in self._files.notes for p in self._known
            )
            if (none_new or not self._files.notes) and not gone:
                return
        labels, damage = note_labels(self._run)
        now = dict(self._sql.execute("SELECT id, note FROM trajectories WHERE note <> ''"))
        changed = {
            trajectory_id: labels.get(trajectory_id, "")
            for trajectory_id in {*labels, *now}
            if labels.get(trajectory_id, "") != now.get(trajectory_id, "")
        }
        self._sql.executemany(
            "UPDATE trajectories SET note = ?, change = ? WHERE id = ?",
            (
                (text, self._change, trajectory_id)
                for trajectory_id, text in changed.items()
            ),
        )
        for path, state in self._files.notes.items():
            own = "; ".join(text for text in damage if path in text)
            self._note_file(self._file(path)[0], path, state, own)

    def _put(self, rows: Sequence[Row], file: int) -> None:
        if not rows:
            return
        numbers = [self._known_numbers(row.numbers) for row in rows]
        # those of a record that an older one of its id may have
        names = [*_OF_INFO, *(n for n in self._found if not n.startswith("annotation."))]
        own = (file, self._change)
        self._sql.executemany(
            self._insertion(names),
            (
                (*row.values, *map(found.get, names), *own)
                for row, found in zip(rows, numbers, strict=True)
            ),
        )

    def _insertion(self, names: Sequence[str]) -> str:
        """The statement that puts rows of ``KEPT``, numbers of these names, file and change."""
        columns = [*_KEPT, *map(in_sql, names), "file", "change"]
        put = [f"{name} = excluded.{name}" for name in columns]
        # what was learned is of the record that it was learned of
        same = "CASE WHEN excluded.recorded_at = trajectories.recorded_at THEN"
        put += [
            f"{name} = {same} {name} END"
            for name in (*map(in_sql, self._learned), "annotated")
        ]
        return (
            f"INSERT INTO trajectories ({', '.join(columns)}) "
            f"VALUES ({', '.join('?' * len(columns))}) "
            f"ON CONFLICT (id) DO UPDATE SET {', '.join(put)} "
            # of two records of one id the newest counts
            "WHERE excluded.recorded_at >= trajectories.recorded_at"
        )

    def _remove(self, file: int, before: int | None = None) -> None:
        """Removes the trajectories of a file, unless a newer record of theirs lies elsewhere.

        Args:
            file: its key.
            before: those alone that were put before this change.
        """
        sql = "DELETE FROM trajectories WHERE file = ?"
        sql += "" if before is None else f" AND change < {before}"
        gone = self._sql.execute(sql, (file,)).rowcount
        self.removed = self.removed or gone > 0

    def _changed(self, files: Files) -> list[str]:
        """The paths of those that are not as they were last."""
        return [path for path, state in files.items() if self._file(path)[1] != state]

    def _file(self, path: str) -> tuple[int, FileState]:
        """The key and the last state of a file; a key of its own where it is new."""
        if path not in self._known:
            self._newest_file += 1
            self._known[path] = (self._newest_file, FileState(0, 0))
        return self._known[path]

    def _appended(self, path: str, state: FileState) -> Appended | None:
        """What came since the last state; None where nothing did."""
        _, known = self._file(path)
        if state == known:
            return None
        return appended(self._run.root / path, known.size)

    def _note_file(self, key: int, path: str, state: FileState, damage: str) -> None:
        self._known[path] = (key, state)
        self._sql.execute(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
            "size = excluded.size, modified = excluded.modified, "
            # what was damaged in a file of lines stays so
            "damage = CASE WHEN excluded.damage = '' AND path LIKE '%.jsonl' THEN damage "
            "ELSE excluded.damage END",
            (key, path, state.size, state.modified, damage),
        )

    def _commit(self) -> None:
        run = self._sql.execute
        run("UPDATE counters SET value = ? WHERE name = 'change'", (self._change,))
        if self.removed:
            run("UPDATE counters SET value = value + 1 WHERE name = 'removals'")
        run("COMMIT")


def found_names(sql: sqlite3.Connection) -> list[str]:
    """The fields that the run names itself, as they were found."""
    rows = sql.execute("SELECT name FROM pragma_table_info('trajectories')")
    return [name for (name,) in rows if name.partition(".")[0] in FOUND and "." in name]
