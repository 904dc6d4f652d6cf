"""Shard file: opens a Parquet file that is a regular file, and finds a row of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import StoreError
from agentrl.guards.regular_file import check_regular


class DamagedShardError(StoreError):
    """A shard cannot be read."""


def shard_file(path: Path) -> pq.ParquetFile:
    """The Parquet file of a name; the caller closes it.

    Raises:
        OSError, pa.ArrowException: it is none.
    """
    check_regular(path)
    return pq.ParquetFile(path)


@contextmanager
def reading_shard(failure: str) -> Iterator[None]:
    """Turns what a damaged shard raises within into a DamagedShardError: ``failure``, and why."""
    try:
        yield
    except (OSError, LookupError, ValueError, TypeError, pa.ArrowException) as error:
        raise DamagedShardError(f"{failure}: {error}") from error


def place_of(file: pq.ParquetFile, index: int) -> tuple[int, int]:
    """The row group of a row, and the row's place in it.

    Raises:
        IndexError: there is no such row.
    """
    first = 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if first <= index < first + rows:
            return number, index - first
        first += rows
    raise IndexError(f"it has {first} rows")
