"""Trajectory files: live records by step and sealed Parquet shards, a row a trajectory.

A list of what is live parses the objects alone; the bytes lie in the frame beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import StoreError
from agentrl.store.jsonl import read_jsonl
from agentrl.store.run_directory import RunDirectory
from agentrl.store.shard import (
    ShardLayout,
    ShardWriter,
    place_of,
    reading_shard,
    shard_file,
)
from agentrl.store.step_files import StepFiles, frame_of, read_frame, read_framed
from agentrl.store.trajectories.columns import (
    ADDED,
    ARRAYS,
    COLUMNS,
    FORMAT,
    FORMAT_KEY,
    SCHEMA,
    SIDE,
    SUMMARY_COLUMNS,
    EncodedRow,
    Row,
    TokenArrays,
    chosen,
)

# Measured on 128 trajectories of 180 tokens: statistics of text and arrays are a third of the file,
# and dictionaries cost a quarter of the time and shrink nothing that zstd does not.
LAYOUT = ShardLayout(
    options={
        "compression": "zstd",
        "use_dictionary": False,
        "write_statistics": [
            name for name in SUMMARY_COLUMNS if not pa.types.is_list(COLUMNS[name].type)
        ],
    },
    max_rows=32,
    max_bytes=2_000_000,
)
_WHOLE = (*COLUMNS, *ARRAYS, SIDE)
_texts_of = itemgetter(*(name for name, one in COLUMNS.items() if one.type == pa.string()))


class TrajectoryShardWriter(ShardWriter[EncodedRow]):
    """Of a shard of trajectories."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, LAYOUT)

    def batch(self, rows: Sequence[EncodedRow]) -> pa.RecordBatch:
        """See ``ShardWriter.batch``."""
        columns: list[pa.Array] = [
            pa.array([row[name] for row, _ in rows], column.type)
            for name, column in COLUMNS.items()
        ]
        sizes = [arrays.token_ids.size for _, arrays in rows]
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        for name, column in ARRAYS.items():
            values = [getattr(arrays, name) for _, arrays in rows]
            flat = pa.array(
                np.concatenate(values) if values else [], column.type.value_type
            )
            columns.append(pa.ListArray.from_arrays(offsets, flat, type=column.type))
        columns.append(pa.array([arrays.side for _, arrays in rows], pa.binary()))
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def size(self, row: EncodedRow) -> int:
        """Its texts, at a byte a character, and its arrays."""
        columns, arrays = row
        texts = sum(len(text or "") for text in _texts_of(columns))
        return texts + arrays.token_ids.size * TokenArrays.BYTES_A_TOKEN + len(arrays.side)


def write_shard(path: Path, rows: Iterable[EncodedRow]) -> int:
    """Write a shard, durably and in one step.

    Returns:
        How many rows it has.

    Raises:
        StoreError: the file cannot be written.
    """
    return TrajectoryShardWriter(path).write(rows)


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Some columns of every row, in order; none of them is an array.

    Raises:
        StoreError: the file is no shard, is of another format, or lacks a column.
    """
    with reading_shard(f"{path} cannot be read as a shard"), _opened(path) as file:
        return _table(file, names).combine_chunks()


def read_shard_row(path: Path, index: int) -> EncodedRow:
    """One row and its arrays; reads its row group alone.

    Raises:
        StoreError: the file is no shard, or has no such row.
    """
    with reading_shard(f"row {index} of {path} cannot be read"), _opened(path) as file:
        return _row_at(file, index)


def find_shard_row(path: Path, trajectory_id: str) -> EncodedRow:
    """The row of an id, the last of several, and its arrays; reads the ids and one row group.

    Raises:
        StoreError: the file is no shard, or has no such row.
    """
    with (
        reading_shard(f"{trajectory_id!r} of {path} cannot be read"),
        _opened(path) as file,
    ):
        ids = file.read(["id"], use_threads=False)["id"].to_pylist()
        return _row_at(file, len(ids) - 1 - ids[::-1].index(trajectory_id))


def read_shard(path: Path) -> Iterator[EncodedRow]:
    """Every row and its arrays, in order, holding one row group in memory at a time.

    Raises:
        StoreError: the file is no shard.
    """
    with reading_shard(f"{path} cannot be read as a shard"), _opened(path) as file:
        for number in range(file.num_row_groups):
            table = _table(file, _WHOLE, number)
            for index in range(table.num_rows):
                yield _row(table.slice(index, 1))


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    with shard_file(path) as file:
        found = (
            (file.metadata.metadata or {}).get(FORMAT_KEY, b"none").decode(errors="replace")
        )
        if found != str(FORMAT):
            raise ValueError(
                f"it has format {found} and this agentrl reads {FORMAT}; use the one that made it"
            )
        yield file


def _table(
    file: pq.ParquetFile, names: Sequence[str], group: int | None = None
) -> pa.Table:
    """Some columns.

    Args:
        file: the shard.
        names: the columns to give, in this order.
        group: the row group to read; None for all.

    Raises:
        ValueError: the file lacks a column.
        pa.ArrowException: a column has values of another type.
    """
    there = file.schema_arrow.names
    for name in names:
        if name not in (*there, *ADDED):
            raise ValueError(f"it has no column {name!r}")
    own = [name for name in names if name in there]
    if group is None:
        table = file.read(own, use_threads=False)
    else:
        table = file.read_row_group(group, own, use_threads=False)
    for name in names:
        if name not in there:
            nulls = pa.nulls(table.num_rows, SCHEMA.field(name).type)
            table = table.append_column(SCHEMA.field(name), nulls)
    table = table.select(names)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return table if table.schema.types == schema.types else table.cast(schema)


def _row_at(file: pq.ParquetFile, index: int) -> EncodedRow:
    """One row of a shard.

    Raises:
        IndexError: it has no such row.
    """
    group, place = place_of(file, index)
    return _row(_table(file, _WHOLE, group).slice(place, 1))


def _row(table: pa.Table) -> EncodedRow:
    """The one row of a table."""
    arrays = {name: table[name].chunk(0).flatten().to_numpy() for name in ARRAYS}
    (row,) = table.drop_columns(list(ARRAYS)).to_pylist()
    side = row.pop(SIDE)
    return row, TokenArrays(**arrays, side=side)


_TEXTS = tuple(name for name in COLUMNS if name not in SUMMARY_COLUMNS)


def live_record(row: Row, arrays: TokenArrays) -> tuple[dict[str, Any], bytes]:
    """The object of a row, and its bytes: the arrays, then the texts end to end.

    Args:
        row: every column.
        arrays: its arrays.

    Returns:
        The object has the summary columns, and ``texts`` with the name and the size of each text.
    """
    texts = {name: row[name].encode() for name in _TEXTS}
    record = {name: row[name] for name in SUMMARY_COLUMNS}
    record["texts"] = [[name, len(data)] for name, data in texts.items()]
    return record, b"".join([arrays.pack(), *texts.values()])


def read_record(record: Mapping[str, Any], data: bytes) -> EncodedRow:
    """The row and arrays of ``live_record``.

    Raises:
        StoreError: the bytes do not fit the object, or it lacks a column.
    """
    sizes = record.get("texts", [])
    start = len(data) - sum(size for _, size in sizes)
    if start < 0:
        raise StoreError(
            f"the texts of trajectory {record.get('id')!r} need {len(data) - start} bytes, got "
            f"{len(data)}"
        )
    arrays = data[:start]
    texts = {}
    for name, size in sizes:
        texts[name] = data[start : start + size].decode()
        start += size
    row = chosen({**record, **texts})
    return row, TokenArrays.unpack(arrays, row["num_tokens"])


def read_live_row(path: Path, record: Mapping[str, Any]) -> EncodedRow:
    """The row and arrays of a line.

    Args:
        path: the lines' file.
        record: the line's object.

    Raises:
        StoreError: the frame is not there or is damaged, or does not fit the line.
    """
    return read_record(record, read_frame(path, frame_of(str(path), record)))


def live_texts(path: Path) -> Iterator[Row]:
    """The rows of a live file, without their arrays; nothing where it was sealed meanwhile.

    What cannot be read is passed over; ``TrajectoryReader.damage`` names it.
    """
    for record in read_jsonl(path, lambda error: None):
        try:
            row, _ = read_live_row(path, record)
        except StoreError:
            continue
        yield row


class TrajectoryFiles(StepFiles[EncodedRow]):
    """One writer's trajectories, by step. Used by one thread.

    Args:
        run: whose trajectories.
        writer: the name of the files.
    """

    def __init__(self, run: RunDirectory, writer: str) -> None:
        super().__init__(run.live_folder, run.sealed_folder, writer)

    def append(self, step: int, row: Row, arrays: TokenArrays) -> None:
        """Add a trajectory to a step; raises what ``StepFiles.add`` raises."""
        self.add(step, *live_record(row, arrays), (row, arrays))

    def new_shard(self, path: Path) -> TrajectoryShardWriter:
        """See ``StepFiles``; so for what follows."""
        return TrajectoryShardWriter(path)

    def seal_live(self, live: Path, shard: Path) -> int:
        rows = (read_live_row(live, record) for record in read_framed(live))
        first = next(rows, None)
        return 0 if first is None else write_shard(shard, chain([first], rows))
