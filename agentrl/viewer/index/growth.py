"""Index growth: brings what was written to a run into its index, in a transaction or several."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.viewer.index.columns import COLUMNS
from agentrl.viewer.index.database import SORT_INDICES
from agentrl.viewer.index.sources import (
    Appended,
    FileState,
    LedgerRow,
    Row,
    Snapshot,
    appended,
    ledger_rows,
    note_labels,
    shard_rows,
)

_SHARDS_A_COMMIT = 64
_MANY_MOVES = 2000
_READERS = 4
_LEDGER = "ledger.jsonl"
_NAMES = ", ".join(COLUMNS)
_PUT = (
    f"INSERT INTO trajectories ({_NAMES}, file, change) "
    f"VALUES ({', '.join('?' * len(COLUMNS))}, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in COLUMNS)}, "
    "file = excluded.file, change = excluded.change "
    # of two records of one id the newest counts
    "WHERE excluded.recorded_at >= trajectories.recorded_at"
)
# What the ledger says is of the record that finished, not of one that failed and was played again.
_JOIN = (
    "UPDATE trajectories SET trained_step = ledger.trained_step, "
    "drop_reason = ledger.drop_reason, change = :change FROM ledger "
    "WHERE trajectories.group_index = ledger.group_index "
    "AND trajectories.rollout_index = ledger.rollout_index "
    "AND purpose = 'train' AND status NOT IN ('failed', 'cancelled') "
    "AND (trajectories.trained_step IS NOT ledger.trained_step "
    "OR trajectories.drop_reason <> ledger.drop_reason)"
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

    def __init__(self, run: RunDirectory, snapshot: Snapshot, writer: sqlite3.Connection) -> None:
        self._run = run
        self._files = snapshot
        self._sql = writer
        self._known: dict[str, tuple[int, FileState]] = {
            path: (key, FileState(size, modified))
            for key, path, size, modified in writer.execute(
                "SELECT key, path, size, modified FROM files"
            )
        }
        (last,) = writer.execute("SELECT value FROM counters WHERE name = 'change'").fetchone()
        self._first = last + 1
        self._change = last + 1
        self._newest_file = max((key for key, _ in self._known.values()), default=0)
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
            self._take_live()
            self._take_sealed()
            self._take_vanished()
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
        new = [
            path
            for path, state in self._files.sealed.items()
            if path not in self._known or self._known[path][1] != state
        ]
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
                for path, (rows, damage) in zip(part, readers.map(self._read, part), strict=True):
                    key, known = self._file(path)
                    if known.modified:
                        # it was rewritten
                        self._remove(key)
                    self._put(rows, key)
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
        present = {*self._files.live, *self._files.sealed, *self._files.notes, _LEDGER}
        for path, (key, _) in self._known.items():
            if path not in present:
                self._remove(key)
                self._sql.execute("DELETE FROM files WHERE key = ?", (key,))

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
            ({**change, "group": group, "rollout": rollout} for group, rollout, *_ in moved),
        )

    def _take_notes(self) -> None:
        if all(self._file(path)[1] == state for path, state in self._files.notes.items()):
            sql = "SELECT 1 FROM trajectories WHERE change >= ? LIMIT 1"
            none_new = self._sql.execute(sql, (self._first,)).fetchone() is None
            gone = any(p.startswith("notes/") and p not in self._files.notes for p in self._known)
            if (none_new or not self._files.notes) and not gone:
                return
        labels, damage = note_labels(self._run)
        now = dict(self._sql.execute("SELECT id, labels FROM trajectories WHERE labels <> ''"))
        changed = {
            trajectory_id: labels.get(trajectory_id, "")
            for trajectory_id in {*labels, *now}
            if labels.get(trajectory_id, "") != now.get(trajectory_id, "")
        }
        self._sql.executemany(
            "UPDATE trajectories SET labels = ?, change = ? WHERE id = ?",
            ((text, self._change, trajectory_id) for trajectory_id, text in changed.items()),
        )
        for path, state in self._files.notes.items():
            own = "; ".join(text for text in damage if path in text)
            self._note_file(self._file(path)[0], path, state, own)

    def _put(self, rows: Iterable[Row], file: int) -> None:
        own = (file, self._change)
        self._sql.executemany(_PUT, ((*row, *own) for row in rows))

    def _remove(self, file: int) -> None:
        """Removes the trajectories of a file, unless a newer record of theirs lies elsewhere."""
        gone = self._sql.execute("DELETE FROM trajectories WHERE file = ?", (file,)).rowcount
        self.removed = self.removed or gone > 0

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
