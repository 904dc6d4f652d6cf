"""Sealed shards: Parquet files of one row a trajectory; a name that exists is a whole file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import StoreError
from agentrl.store.atomic import replacing
from agentrl.store.trajectories.codec import Row
from agentrl.store.trajectories.token_arrays import TokenArrays

ROW_GROUP_SIZE = 32

_SUMMARY = {
    "id": pa.string(),
    "draw": pa.int64(),
    "sibling": pa.int32(),
    "attempt": pa.int32(),
    "label": pa.string(),
    "purpose": pa.string(),
    "step": pa.int64(),
    "task_id": pa.string(),
    "data_source": pa.string(),
    "status": pa.string(),
    "status_reason": pa.string(),
    "reward": pa.float64(),
    "rewards": pa.string(),
    "num_turns": pa.int32(),
    "num_policy_tokens": pa.int64(),
    "num_tokens": pa.int64(),
    "policy_version_min": pa.int64(),
    "policy_version_max": pa.int64(),
    "recorded_at": pa.float64(),
}
_TEXTS = ("status_detail", "prompt", "final_text", "turns", "task", "timings", "info")
_ARRAYS = {
    "token_ids": pa.int32(),
    "logprobs": pa.float32(),
    "policy_versions": pa.int32(),
    "turn_index": pa.int32(),
    "kinds": pa.int8(),
}
_NULLABLE = ("reward", "policy_version_min", "policy_version_max")
_COLUMNS = {
    **_SUMMARY,
    **dict.fromkeys(_TEXTS, pa.string()),
    **{name: pa.list_(kind) for name, kind in _ARRAYS.items()},
    "side": pa.binary(),
}

SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=name in _NULLABLE) for name, kind in _COLUMNS.items()]
)
"""Fixed: what varies from row to row is a JSON string, so that shards of any runs load together."""

SUMMARY_COLUMNS = tuple(_SUMMARY)
"""What a list of trajectories shows; reading them touches no text and no tokens."""

# Measured on 128 trajectories of 180 tokens: statistics of text and arrays are a third of the file,
# and dictionaries cost a quarter of the time and shrink nothing that zstd does not.
_LAYOUT = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": list(SUMMARY_COLUMNS),
}


def write_shard(path: Path, rows: Iterable[tuple[Row, TokenArrays]]) -> int:
    """Write a shard, durably and in one step, holding 32 rows in memory at a time.

    Returns:
        How many rows it has.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        with (
            replacing(path) as temporary,
            pq.ParquetWriter(temporary, SCHEMA, **_LAYOUT) as writer,
        ):
            count = 0
            iterator = iter(rows)
            while group := tuple(islice(iterator, ROW_GROUP_SIZE)):
                writer.write_batch(_record_batch(group), row_group_size=ROW_GROUP_SIZE)
                count += len(group)
    except pa.ArrowException as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    return count


def read_summaries(path: Path) -> list[Row]:
    """The summary columns of each row, in order.

    Raises:
        StoreError: the file is no shard, or lacks one of the columns.
    """
    with _reading(f"{path} cannot be read as a shard"):
        table = pq.ParquetFile(path).read(columns=list(SUMMARY_COLUMNS))
    if lacking := [name for name in SUMMARY_COLUMNS if name not in table.column_names]:
        raise StoreError(f"{path} cannot be read as a shard: it has no column {lacking[0]!r}")
    rows: list[Row] = table.to_pylist()
    return rows


def read_shard_row(path: Path, index: int) -> tuple[Row, TokenArrays]:
    """One row and its arrays; reads its row group alone.

    Raises:
        StoreError: the file is no shard, or has no such row.
    """
    group, within = divmod(index, ROW_GROUP_SIZE)
    with _reading(f"row {index} of {path} cannot be read"), pq.ParquetFile(path) as file:
        table = file.read_row_group(group)
    return _row(table.slice(within, 1))


def read_shard(path: Path) -> Iterator[tuple[Row, TokenArrays]]:
    """Every row and its arrays, in order, holding 32 rows in memory at a time.

    Raises:
        StoreError: the file is no shard.
    """
    with _reading(f"{path} cannot be read as a shard"), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROW_GROUP_SIZE):
            table = pa.Table.from_batches([batch])
            for index in range(batch.num_rows):
                yield _row(table.slice(index, 1))


@contextmanager
def _reading(failure: str) -> Iterator[None]:
    try:
        yield
    except (OSError, IndexError, pa.ArrowException) as error:
        raise StoreError(f"{failure}: {error}") from error


def _row(table: pa.Table) -> tuple[Row, TokenArrays]:
    """The one row of a table."""
    arrays = {name: table[name].combine_chunks().flatten().to_numpy() for name in _ARRAYS}
    row: Row = table.drop_columns(list(_ARRAYS)).to_pylist()[0]
    return row, TokenArrays(**arrays, side=row.pop("side"))


def _record_batch(rows: Iterable[tuple[Row, TokenArrays]]) -> pa.RecordBatch:
    arrays = (*_ARRAYS, "side")
    whole = [{**row, **{name: getattr(own, name) for name in arrays}} for row, own in rows]
    return pa.RecordBatch.from_pylist(whole, schema=SCHEMA)
