"""Run SQL: answers SQL over a run's files by DuckDB, which can read them and nothing else.

Views: ``trajectories``, ``turns``, ``annotations``, ``metrics``, ``events`` (docs/query.md). Before
a query runs, access to files is shut off but for the run's shards, and the configuration is locked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any

import duckdb
import pyarrow as pa

from agentrl.errors import Closing, ConfigError
from agentrl.guards.printable import encodable
from agentrl.store import RunDirectory, read_jsonl
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.json_text import to_json
from agentrl.store.jsonl import DamageList
from agentrl.store.trajectories.columns import ADDED, COLUMNS, SCHEMA
from agentrl.store.trajectories.files import live_texts
from agentrl.viewer.annotation_sql import (
    create_annotations,
    live_and_sealed,
    live_annotations,
    readable_shards,
    sql_list,
)
from agentrl.viewer.index import RunIndex
from agentrl.viewer.index.fields import FIELDS, Kind, in_sql

MAX_ROWS = 10_000
_EVENT_FIELDS = (
    "time",
    "level",
    "event",
    "boundary",
    "message",
    "step",
    "stage",
    "trajectory",
)
_ZONED = "TIMESTAMP WITH TIME ZONE"
_PLAIN = frozenset({bool, int, float, str, NoneType})
_TURNS = """
CREATE VIEW turns AS
SELECT id, stage, step, task, reward, status,
       CAST(turn ->> '$.index' AS INTEGER) AS turn,
       CAST(turn ->> '$.parent' AS INTEGER) AS parent,
       turn ->> '$.agent' AS agent,
       turn ->> '$.text' AS "text",
       turn ->> '$.finish_reason' AS finish_reason,
       CAST(json_array_length(turn, '$.calls') AS INTEGER) AS num_calls,
       turn -> '$.observed' AS observed,
       turn -> '$.message' AS message,
       turn -> '$.calls' AS calls,
       turn -> '$.rewards' AS rewards,
       turn -> '$.timings' AS timings,
       turn -> '$.info' AS info
FROM (SELECT id, stage, step, task, reward, status,
             unnest(json_extract(turns_json, '$[*]')) AS turn
      FROM trajectories)
"""
_TYPES: Mapping[Kind, pa.DataType] = {
    "integer": pa.int64(),
    "real": pa.float64(),
    "text": pa.string(),
    "list": pa.list_(pa.string()),
}
_STORED = {f.stored: f.name for f in FIELDS.values() if f.stored and f.stored not in ADDED}
"""The fields that are read from shards, by their columns there."""
_RENAMED = {**_STORED, "task": "task_json", "turns": "turns_json", "final_text": "final"}


class SqlError(ConfigError):
    """A statement that cannot be answered; the message says why, and what can be asked."""


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The answer to a statement.

    Args:
        columns: their names.
        rows: as JSON can carry them.
        cut: whether there were more rows than asked for.
        seconds: that it took.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    cut: bool
    seconds: float


def _connected(memory: str, threads: int) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(config={"memory_limit": memory, "threads": threads})
    except duckdb.ParserException as error:
        raise SqlError(
            f"the memory of a query must be a size with its unit, such as 500MB, got {memory!r}"
        ) from error


class RunSql(Closing):
    """SQL over one run as it is now. Used by one thread.

    Args:
        run: the run.
        index: of the run; it is refreshed.
        memory: that a query may take, as DuckDB writes it.
        threads: that a query may use; by default the machine's, four at most.

    Raises:
        StoreError: the run cannot be read.
        SqlError: ``memory`` is no size, or too little for the run.
    """

    closing = "closing DuckDB"

    def __init__(
        self,
        run: RunDirectory,
        index: RunIndex,
        *,
        memory: str = "2GB",
        threads: int | None = None,
    ) -> None:
        index.refresh(timeout_s=60.0)
        self.damage = DamageList()
        """What of the run cannot be read, and is in no answer."""
        # before the shards, which may be made of it meanwhile
        live = _live_table(run)
        learned = live_annotations(run, self.damage.add)
        sealed = sorted(run.sealed_folder.glob("step=*/*.parquet"))
        annotations = readable_shards(run, self.damage.add)
        damage = index.damage()
        self.damage = DamageList(dict.fromkeys([*damage, *self.damage]))
        damaged = "\n".join(damage)
        sealed = [path for path in sealed if str(path) not in damaged]
        self._connection = _connected(memory, threads or min(4, os.cpu_count() or 1))
        self._memory = memory
        try:
            self._create_trajectories(index, live, sealed)
            self._connection.execute(_TURNS)
            rollbacks = Rollbacks.readable(run, self.damage.add)
            create_annotations(self._connection, rollbacks, learned, annotations)
            self._create(
                "metrics", _columns_of(read_jsonl(run.metrics_path, self.damage.add))
            )
            self._create("events", _events(read_jsonl(run.events_path, self.damage.add)))
        except duckdb.OutOfMemoryException as error:
            self.close()
            raise self._too_large() from error
        # The views stand by now. Locking comes last: after it nothing can be set, by a query least
        # of all.
        for statement in (
            f"SET allowed_paths = {sql_list([*sealed, *annotations])}",
            "SET python_enable_replacements = false",
            "SET temp_directory = ''",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ):
            self._connection.execute(statement)

    def _too_large(self) -> SqlError:
        return SqlError(
            f"the query takes more than the {self._memory} of memory that it may; narrow it, or "
            "raise the memory (--memory)"
        )

    def query(self, sql: str, *, rows: int = 1000, timeout_s: float = 60.0) -> SqlResult:
        """The answer to one ``SELECT``.

        Args:
            sql: the statement.
            rows: at most so many, ``MAX_ROWS`` at most.
            timeout_s: after which it is ended.

        Raises:
            SqlError: it is no single SELECT, it is wrong, or it takes too long or too much memory.
        """
        started = time.monotonic()
        # ends with the query, or by ending the query; DuckDB lets any thread interrupt
        timer = threading.Timer(timeout_s, self._connection.interrupt)
        timer.daemon = True
        try:
            self._assert_select(sql)
            timer.start()
            found = self._connection.execute(sql)
            columns = tuple(entry[0] for entry in found.description or ())
            kinds = [str(entry[1]) for entry in found.description or ()]
            if any(_ZONED in kind for kind in kinds):
                found = self._with_times_as_text(sql, kinds)
            limit = max(1, min(rows, MAX_ROWS))
            # One row more than asked for tells whether there are more.
            fetched = found.fetchmany(limit + 1)
        except duckdb.InterruptException as error:
            raise SqlError(
                f"the query took longer than {timeout_s:g} s; narrow it, or raise the time"
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise self._too_large() from error
        except duckdb.Error as error:
            raise SqlError(f"SQL: {error}") from error
        finally:
            timer.cancel()
        plain = [tuple(_plain(value) for value in row) for row in fetched[:limit]]
        return SqlResult(columns, plain, len(fetched) > limit, time.monotonic() - started)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._connection.close()

    def _assert_select(self, sql: str) -> None:
        statements = self._connection.extract_statements(sql)
        kinds = [statement.type.name for statement in statements]
        if kinds != ["SELECT"]:
            found = " and ".join(kinds) or "nothing"
            raise SqlError(
                f"a query must be one SELECT, since a run is read only, got {found}; the views are "
                "trajectories, turns, annotations, metrics, events"
            )

    def _with_times_as_text(
        self, sql: str, kinds: Sequence[str]
    ) -> duckdb.DuckDBPyConnection:
        """The answer to a statement with its times of a zone as texts, of which DuckDB makes
        objects by the package pytz alone.

        Args:
            sql: the statement.
            kinds: the types of its columns.
        """
        shown = ", ".join(
            f"CAST(#{place} AS {kind.replace(_ZONED, 'VARCHAR')})"
            if _ZONED in kind
            else f"#{place}"
            for place, kind in enumerate(kinds, 1)
        )
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW asked AS {sql}")
        return self._connection.execute(f"SELECT {shown} FROM asked")

    def _create(self, view: str, table: pa.Table) -> None:
        self._connection.register(f"{view}_table", table)
        self._connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {view}_table")

    def _create_trajectories(
        self, index: RunIndex, live: pa.Table, sealed: Sequence[Path]
    ) -> None:
        """The newest record of each id, with what the index knows of it besides."""
        fields = index.fields()
        stored = set(_STORED.values()) - {"id", "recorded_at"}
        joined = index.columns([name for name in fields if name not in stored])
        arrays = {
            name: _field_array(own, fields[name].kind) for name, own in joined.items()
        }
        self._connection.register("index_table", pa.table(arrays))
        self._connection.register("live_table", live)
        found = live_and_sealed("live_table", ("id", "recorded_at"), sealed)
        renamed = ", ".join(
            f"{old} AS {in_sql(new)}" for old, new in _RENAMED.items() if old != new
        )
        self._connection.execute(
            f"CREATE VIEW trajectories AS SELECT found.* EXCLUDE ({', '.join(ADDED)}) "
            f"RENAME ({renamed}), found.task ->> '$.answer' AS answer, "
            "index_table.* EXCLUDE (id, recorded_at) "
            f"FROM ({found}) AS found JOIN index_table USING (id, recorded_at)"
        )


def _field_array(values: Sequence[Any], kind: Kind) -> pa.Array:
    if kind == "real":
        # SQLite gives whole ones as integers, of which Arrow makes no float beyond 2**53.
        values = [value if value is None else float(value) for value in values]
    return pa.array(values, _TYPES[kind])


def _live_table(run: RunDirectory) -> pa.Table:
    """The trajectories that are not sealed yet, without their arrays."""
    live = sorted(run.live_folder.glob("step=*/*.jsonl"))
    rows = [row for path in live for row in live_texts(path)]
    return pa.Table.from_pylist(
        rows, schema=pa.schema([SCHEMA.field(name) for name in COLUMNS])
    )


def _columns_of(rows: Iterable[Mapping[str, Any]], first: Sequence[str] = ()) -> pa.Table:
    """Rows of any keys as columns; what is neither number nor text is its JSON."""
    listed = list(rows)
    names = list(dict.fromkeys([*first, *(name for row in listed for name in row)]))
    arrays = {encodable(name): _array([row.get(name) for row in listed]) for name in names}
    return pa.table(arrays or {"step": pa.array([], pa.int64())})


def _array(values: Sequence[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if not kinds or kinds == {bool}:
        return pa.array(values, pa.bool_() if kinds else pa.float64())
    if kinds <= {int, float}:
        try:
            return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
        except (OverflowError, pa.ArrowInvalid):
            # a whole number of many digits: as its text
            pass
    texts = (
        value if value is None or isinstance(value, str) else to_json(value)
        for value in values
    )
    return pa.array([text and encodable(text) for text in texts], pa.string())


def _events(records: Iterable[Mapping[str, Any]]) -> pa.Table:
    rows = []
    for record in records:
        row = {name: record.get(name) for name in _EVENT_FIELDS}
        rest = {name: value for name, value in record.items() if name not in _EVENT_FIELDS}
        rows.append({**row, "fields": to_json(rest)})
    return _columns_of(rows, first=(*_EVENT_FIELDS, "fields"))


def _plain(value: Any) -> Any:
    """A value of DuckDB's as JSON can carry it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        # Most are the numbers of many tokens.
        return (
            list(value) if _PLAIN.issuperset(map(type, value)) else list(map(_plain, value))
        )
    return value if type(value) in _PLAIN else str(value)
