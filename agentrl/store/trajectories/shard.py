"""Sealed shards: Parquet files of one row a trajectory; a name that exists is a whole file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import StoreError
from agentrl.store.atomic import take_place, temporary_beside
from agentrl.store.trajectories.columns import (
    ARRAYS,
    COLUMNS,
    FORMAT,
    FORMAT_KEY,
    NEEDED,
    SCHEMA,
    SIDE,
    SUMMARY_COLUMNS,
    Row,
    completed,
    stored_name,
)
from agentrl.store.trajectories.token_arrays import TokenArrays
from agentrl.store.write_error import write_failure

MAX_GROUP_ROWS = 32
MAX_GROUP_BYTES = 2_000_000
"""Before compression; a row that is larger has a row group of its own."""

# Measured on 128 trajectories of 180 tokens: statistics of text and arrays are a third of the file,
# and dictionaries cost a quarter of the time and shrink nothing that zstd does not.
_LAYOUT: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": [
        name for name in SUMMARY_COLUMNS if not pa.types.is_list(COLUMNS[name].type)
    ],
}
_WHOLE = (*COLUMNS, *ARRAYS, SIDE)

StoredRow = tuple[Row, TokenArrays]


class ShardWriter:
    """Writes a shard row by row, holding one row group in memory; the file is in its place once
    ``publish`` has returned.

    Args:
        path: of the shard.

    Raises:
        StoreError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = temporary_beside(path)
        self._group: list[StoredRow] = []
        self._group_bytes = 0
        self.num_rows = 0
        """Rows so far."""
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._temporary, SCHEMA, **_LAYOUT)

    def add(self, row: Row, arrays: TokenArrays) -> None:
        """Add a row at the end.

        Raises:
            StoreError: the file cannot be written.
        """
        size = _size(row, arrays)
        full = len(self._group) == MAX_GROUP_ROWS or self._group_bytes + size > MAX_GROUP_BYTES
        if self._group and full:
            self._end_group()
        self._group.append((row, arrays))
        self._group_bytes += size
        self.num_rows += 1

    def publish(self) -> None:
        """Put the file in its place, durably; called once.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            if self._group:
                self._end_group()
            with self._writing():
                self._file.close()
                take_place(self._temporary, self._path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written; nothing where it was published."""
        with contextlib.suppress(OSError, pa.ArrowException):  # a full disk refuses the footer too
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _end_group(self) -> None:
        with self._writing():
            batch = _record_batch(self._group)
            self._file.write_batch(batch, row_group_size=len(self._group))
        self._group = []
        self._group_bytes = 0

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise write_failure(f"{self._path} cannot be written", self._path, error) from error


def write_shard(path: Path, rows: Iterable[StoredRow]) -> int:
    """Write a shard, durably and in one step.

    Returns:
        How many rows it has.

    Raises:
        StoreError: the file cannot be written.
    """
    writer = ShardWriter(path)
    try:
        for row, arrays in rows:
            writer.add(row, arrays)
    except BaseException:
        writer.discard()
        raise
    writer.publish()
    return writer.num_rows


def read_summaries(path: Path) -> pa.Table:
    """The summary columns of every row, in order, of any format, under the names of today.

    Raises:
        StoreError: the file is no shard, is of a newer format, or lacks a column that has no empty
            value.
    """
    with _reading(f"{path} cannot be read as a shard"), _opened(path) as file:
        table = _table(file, SUMMARY_COLUMNS)
        for name in SUMMARY_COLUMNS:
            if name not in table.column_names:
                column = COLUMNS[name]
                empty = pa.array([column.empty] * table.num_rows, column.type)
                table = table.append_column(name, empty)
        return table.combine_chunks()


def read_shard_row(path: Path, index: int) -> StoredRow:
    """One row and its arrays; reads its row group alone.

    Raises:
        StoreError: the file is no shard, or has no such row.
    """
    with _reading(f"row {index} of {path} cannot be read"), _opened(path) as file:
        return _row_at(file, index)


def find_shard_row(path: Path, trajectory_id: str) -> StoredRow:
    """The row of an id, the last of several, and its arrays; reads the ids and one row group.

    Raises:
        StoreError: the file is no shard, or has no such row.
    """
    with _reading(f"{trajectory_id!r} of {path} cannot be read"), _opened(path) as file:
        ids = file.read(["id"], use_threads=False)["id"].to_pylist()
        return _row_at(file, len(ids) - 1 - ids[::-1].index(trajectory_id))


def read_shard(path: Path) -> Iterator[StoredRow]:
    """Every row and its arrays, in order, holding one row group in memory at a time.

    Raises:
        StoreError: the file is no shard.
    """
    with _reading(f"{path} cannot be read as a shard"), _opened(path) as file:
        for number in range(file.num_row_groups):
            table = _table(file, _WHOLE, number)
            for index in range(table.num_rows):
                yield _row(table.slice(index, 1))


def _size(row: Row, arrays: TokenArrays) -> int:
    """About how many bytes a row has: its texts, at a byte a character, and its arrays."""
    texts = sum(len(value) for value in row.values() if isinstance(value, str))
    return texts + arrays.token_ids.size * TokenArrays.BYTES_A_TOKEN + len(arrays.side)


@contextmanager
def _reading(failure: str) -> Iterator[None]:
    try:
        yield
    except (OSError, IndexError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"{failure}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    with pq.ParquetFile(path) as file:
        found = int((file.metadata.metadata or {}).get(FORMAT_KEY, b"1"))
        if found > FORMAT:
            raise ValueError(
                f"it has format {found} and this agentrl reads up to {FORMAT}; use the one that "
                "made it"
            )
        yield file


def _table(file: pq.ParquetFile, names: Sequence[str], group: int | None = None) -> pa.Table:
    """Columns under the names of today, without those that the file lacks.

    Args:
        file: the shard.
        names: the columns to give, in this order.
        group: the row group to read; None for all.

    Raises:
        ValueError: the file lacks a column that has no empty value.
        pa.ArrowException: a column has values of another type.
    """
    found = file.schema_arrow.names
    stored = {name: stored_name(name, found) for name in names}
    for name in names:
        if stored[name] is None and name in NEEDED:
            raise ValueError(f"it has no column {name!r}")
    given = {name: own for name, own in stored.items() if own is not None}
    columns = list(given.values())
    read = file.read(columns) if group is None else file.read_row_group(group, columns)
    table = pa.table({name: read[own] for name, own in given.items()})
    schema = pa.schema([SCHEMA.field(name) for name in given])
    return table if table.schema.types == schema.types else table.cast(schema)


def _row_at(file: pq.ParquetFile, index: int) -> StoredRow:
    """One row of a shard.

    Raises:
        IndexError: it has no such row.
    """
    first = 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if first <= index < first + rows:
            return _row(_table(file, _WHOLE, number).slice(index - first, 1))
        first += rows
    raise IndexError(f"it has {first} rows")


def _row(table: pa.Table) -> StoredRow:
    """The one row of a table."""
    arrays = {}
    for name in ARRAYS:
        if name in table.column_names:
            arrays[name] = table[name].chunk(0).flatten().to_numpy()
    size = arrays["token_ids"].size
    for name, column in ARRAYS.items():
        if name not in arrays:
            arrays[name] = np.full(size, column.empty, column.type.value_type.to_pandas_dtype())
    (row,) = table.drop_columns([name for name in table.column_names if name in ARRAYS]).to_pylist()
    side = row.pop(SIDE, b"")
    return completed(row), TokenArrays(**arrays, side=side)


def _record_batch(rows: Sequence[StoredRow]) -> pa.RecordBatch:
    columns: list[pa.Array] = [
        pa.array([row[name] for row, _ in rows], column.type) for name, column in COLUMNS.items()
    ]
    sizes = [arrays.token_ids.size for _, arrays in rows]
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    for name, column in ARRAYS.items():
        values = pa.array(np.concatenate([getattr(arrays, name) for _, arrays in rows]))
        columns.append(pa.ListArray.from_arrays(offsets, values, type=column.type))
    columns.append(pa.array([arrays.side for _, arrays in rows], pa.binary()))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
