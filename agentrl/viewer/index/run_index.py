"""Run index: finds, sorts and counts the trajectories of a run, also while it is written.

- ``refresh`` takes what was appended to the run's files since the last time, by whatever process.
- Sealed shards are listed once, live files read from where the last look ended.
- Two locks: ``_writing`` guards the refresh, ``_reading`` the reader's connection and the counted
  columns. A text search holds neither.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from agentrl.errors import Closing, StoreError
from agentrl.store import RunDirectory
from agentrl.store.disk import os_refusals
from agentrl.types.arrays import I64
from agentrl.viewer.index.database import MEMORY, IndexDatabase
from agentrl.viewer.index.facets import FacetColumns
from agentrl.viewer.index.fields import (
    FIELDS,
    SORTED_BY_DEFAULT,
    Field,
    found_field,
    named_field,
    split,
)
from agentrl.viewer.index.growth import Growth, found_names
from agentrl.viewer.index.query import Query, parse_query
from agentrl.viewer.index.sources import Listing, Snapshot
from agentrl.viewer.index.text_search import Match, TextSearch

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_RECOVERIES = 3
_RECOVERY_S = 60.0
_KEPT_NEEDLES = 50
_ROWS_AT_ONCE = 10_000
_FEW = 2000
"""So few that fit are found and sorted sooner than met on a walk along a sorted index."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list.

    Args:
        total: how many trajectories fit the query.
        rows: those of the page, each the fields of ``RunIndex.fields`` by name,
            without the numbers of ``FOUND`` that it lacks.
    """

    total: int
    rows: list[dict[str, Any]]


class Place(NamedTuple):
    """Which record of a trajectory is the newest one: ``stored_rows`` finds it by that."""

    id: str
    step: int
    recorded_at: float
    task: str = ""


class TaskRewards(NamedTuple):
    """The rewards of a task's trajectories: how many, their mean, the mean of their squares, and
    how many solved it.
    """

    played: int
    mean: float
    mean_square: float
    solved: int


class RunIndex(Closing):
    """The trajectories of a run as a table. Safe to use from several threads.

    Args:
        run: the run.
        cache: the folder for indices; by default ``agentrl/index`` in the user's cache.
    """

    closing = "closing the index"

    def __init__(self, run: RunDirectory, cache: Path | None = None) -> None:
        self._run = run
        self._database = IndexDatabase(run.root, cache)
        self._search = TextSearch()
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._facets = FacetColumns()
        # what _facets has: opened, removals, change
        self._counted = (0, 0, 0)
        self._listing = Listing(run)
        self._told: set[str] = set()
        # trajectories taken while an index was rebuilt
        self._regrown = 0
        # what the index has
        self._taken: tuple[int, Snapshot | None] = (0, None)
        # needles in text_match: opened, change
        self._matched: dict[str, tuple[int, int]] = {}

    @property
    def place(self) -> str:
        """The index's file; ``:memory:`` where no folder takes one."""
        return self._database.place

    def refresh(self, timeout_s: float = 0.0) -> int:
        """Take what was appended to the run.

        Args:
            timeout_s: how long to wait for another process that does so at this time; the rows that
                it has written by then are seen in any case.

        Returns:
            How many trajectories are new or changed since the index's last refresh; 0 where another
            process refreshes.

        Raises:
            StoreError: the run is no longer there, or no index can be made anywhere.
        """
        with self._writing:
            self._regrown = 0
            changed = self._recovering(lambda: self._grow(timeout_s))
            return changed + self._regrown

    def fields(self) -> dict[str, Field]:
        """All fields by name: those that are declared, and those that the run names itself."""

        def read() -> list[str]:
            with self._reading:
                return found_names(self._database.reader)

        names = self._recovering(read)
        found = [field for name in names if (field := found_field(name)) is not None]
        return {**FIELDS, **{field.name: field for field in found}}

    def page(
        self,
        query: str = "",
        sort: str = SORTED_BY_DEFAULT,
        offset: int = 0,
        limit: int | None = 200,
    ) -> Page:
        """A part of the trajectories that fit a query.

        Args:
            query: as ``docs/query.md`` says.
            sort: a field, or several with commas between; ``-`` before one for the greatest first.
            offset: how many come before.
            limit: at most so many rows; None for all.

        Raises:
            QueryError: ``query`` is no query.
            ConfigError: there is no such field.
        """
        fields = self.fields()
        parsed = self._parsed(query, fields)
        _order(sort, fields)
        columns = ", ".join(field.column for field in fields.values())

        def read() -> Page:
            run = self._database.reader.execute
            where = f"FROM trajectories WHERE {parsed.sql}"
            (total,) = run(f"SELECT count(*) {where}", parsed.parameters).fetchone()
            # Few rows are sorted sooner than they are met on a walk along an index of the column.
            order = _order(sort, fields, by_index=total > _FEW)
            # Keys are sorted first: to sort whole rows takes ten times as long.
            keys = f"SELECT key AS place {where} ORDER BY {order} LIMIT ? OFFSET ?"
            found = run(
                f"SELECT {columns} FROM ({keys}) CROSS JOIN trajectories ON key = place "
                f"ORDER BY {_order(sort, fields)}",
                (
                    *parsed.parameters,
                    -1 if limit is None else max(0, limit),
                    max(0, offset),
                ),
            )
            return Page(total, [_shown(fields, row) for row in found])

        return self._read(parsed, read)

    def ids(self, query: str = "", sort: str = SORTED_BY_DEFAULT) -> list[str]:
        """The ids of all trajectories that fit a query, in order.

        Raises:
            QueryError, ConfigError: as ``page``.
        """
        return [place.id for place in self.places(query, sort)]

    def places(self, query: str = "", sort: str = SORTED_BY_DEFAULT) -> list[Place]:
        """All trajectories that fit a query, in order, by what finds them in the run's files.

        Raises:
            QueryError, ConfigError: as ``page``.
        """
        fields = self.fields()
        parsed = self._parsed(query, fields)
        names = ", ".join(Place._fields)
        order = _order(sort, fields)
        sql = f"SELECT {names} FROM trajectories WHERE {parsed.sql} ORDER BY {order}"

        def read() -> list[Place]:
            return list(
                map(Place._make, self._database.reader.execute(sql, parsed.parameters))
            )

        return self._read(parsed, read)

    def by_task(self, query: str, solved: str) -> dict[str, TaskRewards]:
        """The rewards of each task, of the trajectories with one that fit a query.

        Args:
            query: as ``docs/query.md`` says.
            solved: another, which those fit that solved their task.

        Raises:
            QueryError: one of them is no query.
        """
        found = self._rewards(query)
        both = " ".join(f"({one})" for one in (query, solved) if one.strip())
        solving = self._rewards(both)
        return {
            task: TaskRewards(*own, solving[task][0] if task in solving else 0)
            for task, own in found.items()
        }

    def _rewards(self, query: str) -> dict[str, tuple[int, float, float]]:
        parsed = self._parsed(query, self.fields())
        sql = (
            "SELECT task, count(*), avg(reward), avg(reward * reward) FROM trajectories "
            f"WHERE reward IS NOT NULL AND task <> '' AND ({parsed.sql}) GROUP BY task"
        )

        def read() -> dict[str, tuple[int, float, float]]:
            rows = self._database.reader.execute(sql, parsed.parameters)
            return {task: (count, mean, square) for task, count, mean, square in rows}

        return self._read(parsed, read)

    def facets(self, query: str = "", names: Sequence[str] | None = None) -> dict[str, Any]:
        """How often each value occurs among the trajectories that fit a query: ``{"columns":
        {name: [[value, count], ...]}, "histograms": {name: {"edges", "counts"}}}``.

        Args:
            query: as ``docs/query.md`` says.
            names: of the fields to count; by default those that are ``counted``.

        Raises:
            QueryError: ``query`` is no query.
            ConfigError: there is no such field.
        """
        fields = self.fields()
        parsed = self._parsed(query, fields)
        chosen = (
            [name for name, own in FIELDS.items() if own.counted]
            if names is None
            else names
        )
        counted = [named_field(name, fields, "facets") for name in chosen]

        def read() -> dict[str, Any]:
            self._count_changes(counted)
            return self._facets.count(self._keys(parsed), chosen)

        return self._read(parsed, read)

    def columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Whole columns by name, a row a trajectory; those of lists hold lists.

        Raises:
            ConfigError: there is no such field.
        """
        fields = self.fields()
        asked = [named_field(name, fields, "columns") for name in names]
        columns = ", ".join(field.column for field in asked)
        rows = self._rows(f"SELECT {columns} FROM trajectories ORDER BY key")
        found = list(zip(*rows, strict=True)) or [()] * len(names)
        return {
            field.name: list(map(split, own)) if field.kind == "list" else list(own)
            for field, own in zip(asked, found, strict=True)
        }

    def file_of(self, trajectory_id: str) -> Path | None:
        """The file with the newest record of an id; None where the run has none."""
        sql = "SELECT path FROM files JOIN trajectories ON files.key = file WHERE id = ?"
        found = self._rows(sql, trajectory_id)
        return self._run.root / found[0][0] if found else None

    def damage(self) -> list[str]:
        """What of the run could not be read, and was passed over."""
        sql = "SELECT damage FROM files WHERE damage <> '' ORDER BY path"
        return [damage for (damage,) in self._rows(sql)]

    def close(self) -> None:
        """Close the index's file; a second call does nothing."""
        with self._writing, self._reading:
            self._database.close()

    def _grow(self, timeout_s: float) -> int:
        with self._database.locked(timeout_s) as held:
            # The reader's connection may be replaced here, so nobody may read meanwhile.
            with self._reading:
                self._database.follow()
            if not held:
                return 0
            now = self._snapshot()
            # Most looks find nothing new and end here, without a statement of SQL.
            if (self._database.opened, now) == self._taken:
                return 0
            opened, before = self._taken
            if before is None or (opened, before.run) != (self._database.opened, now.run):
                with self._reading:
                    self._database.belong_to(now.run)
                # What was found of a run that was deleted is not found of the one in its place.
                self._search.forget()
                self._listing = Listing(self._run)
                now = self._snapshot()
            growth = Growth(self._run, now, self._database.writer)
            # in memory both connections share their pages, and a new column locks them
            with self._reading if self.place == MEMORY else nullcontext():
                changed = growth.take()
            self._taken = (self._database.opened, now)
        if growth.removed:
            self._search.forget()
        self._tell_damage()
        return changed

    def _tell_damage(self) -> None:
        for part in self.damage():
            if part not in self._told:
                self._told.add(part)
                told = {"event": "damaged_part", "part": part}
                logger.warning("%s; it is passed over", part, extra=told)

    def _snapshot(self) -> Snapshot:
        if not self._run.record_path.is_file():
            raise StoreError(
                f"{self._run.root} is no longer there: it was moved or removed; open it where it is"
            )
        with os_refusals(f"{self._run.root} cannot be listed"):
            return self._listing.snapshot()

    def _parsed(self, query: str, fields: Mapping[str, Field]) -> Query:
        """A query; of a run without trajectories one that names what no run declares is one too."""
        is_empty = not self._rows("SELECT 1 FROM trajectories LIMIT 1")
        return parse_query(query, None if is_empty else fields)

    def _read(self, parsed: Query, read: Callable[[], Result]) -> Result:
        """Does ``read`` once the reader's ``text_match`` holds what the query searches for."""

        def work() -> Result:
            with self._reading:
                state = (self._database.opened, self._change())
                if all(self._matched.get(needle) == state for needle in parsed.texts):
                    return read()
                files = self._text_files()
            # The scan holds no lock: it may take a second, and lists are asked for meanwhile.
            found = {needle: self._search.search(needle, *files) for needle in parsed.texts}
            with self._reading:
                self._put_matches(found, state)
                return read()

        return self._recovering(work)

    def _put_matches(
        self, found: Mapping[str, Sequence[Match]], state: tuple[int, int]
    ) -> None:
        run = self._database.reader
        run.execute("BEGIN")
        if len(self._matched) > _KEPT_NEEDLES:
            self._matched.clear()
            run.execute("DELETE FROM text_match")
        for needle, matches in found.items():
            run.execute("DELETE FROM text_match WHERE needle = ?", (needle,))
            run.executemany(
                "INSERT OR IGNORE INTO text_match SELECT ?, key FROM trajectories "
                "WHERE id = ? AND recorded_at = ?",
                ((needle, *match) for match in matches),
            )
            self._matched[needle] = state
        run.execute("COMMIT")

    def _rows(self, sql: str, *parameters: str) -> list[Any]:
        """The rows of a statement that searches no text."""

        def read() -> list[Any]:
            with self._reading:
                return self._database.reader.execute(sql, parameters).fetchall()

        return self._recovering(read)

    def _recovering(self, work: Callable[[], Result]) -> Result:
        """Does ``work``; rebuilds the index where it is damaged, or its folder takes no more."""
        # The next place may refuse as well, such as one on a disk that is full.
        for _ in range(_RECOVERIES):
            opened = self._database.opened
            try:
                return work()
            except sqlite3.Error as error:
                with self._writing, self._reading:
                    if opened == self._database.opened:
                        # else another thread has recovered it
                        self._database.recover(error)
                        self._regrown = self._grow(_RECOVERY_S)
        return work()

    def _change(self) -> int:
        sql = "SELECT value FROM counters WHERE name = 'change'"
        return int(self._database.reader.execute(sql).fetchone()[0])

    def _text_files(self) -> tuple[list[Path], list[Path]]:
        sql = "SELECT path FROM files WHERE path LIKE ? AND damage = '' ORDER BY path"
        root = self._run.root
        found = [
            [root / path for (path,) in self._database.reader.execute(sql, (pattern,))]
            for pattern in ("traj/sealed/%", "traj/live/%")
        ]
        return found[0], found[1]

    def _keys(self, parsed: Query) -> I64:
        if parsed.sql == "1":
            return self._facets.keys()
        # one text: a row an object would cost twice the search
        sql = f"SELECT group_concat(key) FROM trajectories WHERE {parsed.sql}"
        (found,) = self._database.reader.execute(sql, parsed.parameters).fetchone()
        return np.fromstring(found or "", dtype=np.int64, sep=",")

    def _count_changes(self, fields: Sequence[Field]) -> None:
        """Brings the counted fields, these among them, to what the index has."""
        run = self._database.reader
        counters = dict(run.execute("SELECT name, value FROM counters"))
        opened, removals, change = self._counted
        asked = {**self._facets.fields, **{field.name: field for field in fields}}
        is_old = (opened, removals) != (self._database.opened, counters["removals"])
        if is_old or len(asked) > len(self._facets.fields):
            self._facets = FacetColumns(asked.values())
            change = 0
        if change < counters["change"]:
            names = ", ".join(
                ["key", *(field.column for field in self._facets.fields.values())]
            )
            sql = f"SELECT {names} FROM trajectories WHERE change > ?"
            found = run.execute(sql, (change,))
            while rows := found.fetchmany(_ROWS_AT_ONCE):
                # all of a large run's take 100 MB
                self._facets.put(rows)
        self._counted = (self._database.opened, counters["removals"], counters["change"])


def _order(sort: str, fields: Mapping[str, Field], *, by_index: bool = False) -> str:
    """``ORDER BY``'s terms.

    Raises:
        ConfigError: there is no such field.
    """
    terms = []
    plain = "" if by_index else "+"
    for part in sort.split(",") if sort else ():
        field = named_field(part.removeprefix("-"), fields, "sort")
        # what has no value comes last in both directions
        last = " NULLS LAST" if field.nullable and part == field.name else ""
        terms.append(f"{plain}{field.column}{' DESC' if part != field.name else last}")
    return ", ".join(
        [*terms, "key DESC" if sort.rpartition(",")[2].startswith("-") else "key"]
    )


def _shown(fields: Mapping[str, Field], row: Sequence[Any]) -> dict[str, Any]:
    return {
        name: split(value) if field.kind == "list" else value
        for (name, field), value in zip(fields.items(), row, strict=True)
        if value is not None or name in FIELDS
    }
