"""Shard: a Parquet file of any kind, written row by row, opened, and shrunk in one step."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import StoreError
from agentrl.guards.regular_file import check_regular
from agentrl.store.disk import sync_path, take_place, temporary_beside, write_failure

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """How a kind of shard is written.

    Args:
        options: of ``pyarrow.parquet.ParquetWriter``.
        max_rows: of a row group.
        max_bytes: of a row group before compression; a row that is larger has one of its own.
    """

    options: Mapping[str, Any]
    max_rows: int
    max_bytes: int


class ShardWriter(ABC, Generic[Row]):
    """Holds two row groups in memory; the file is in its place once ``publish`` has returned.

    One row group is compressed and written by a thread of its own, for which Arrow leaves the
    interpreter, while the next one is made.

    Args:
        path: of the shard.
        layout: of its kind.
    """

    def __init__(self, path: Path, layout: ShardLayout) -> None:
        self._path = path
        self._layout = layout
        self._temporary = temporary_beside(path)
        self._file: pq.ParquetWriter | None = None
        # starts with the first row group
        self._thread = ThreadPoolExecutor(1, "shard")
        self._written: Future[None] | None = None
        """Of the row group that the thread has, or had last."""
        self._group: list[Row] = []
        self._group_bytes = 0
        self.num_rows = 0
        """Rows so far."""

    @abstractmethod
    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """A row group as columns; the schema of the first one is the file's."""

    @abstractmethod
    def size(self, row: Row) -> int:
        """About how many bytes a row has."""

    def takes(self, row: Row) -> bool:
        """Whether the file has a column for all of a row."""
        return True

    def write(self, rows: Iterable[Row]) -> int:
        """Add all rows and publish, or leave nothing; the number of rows.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            for row in rows:
                self.add(row)
        except BaseException:
            self.discard()
            raise
        self.publish()
        return self.num_rows

    def add(self, row: Row) -> None:
        """Add a row at the end.

        Raises:
            StoreError: the file cannot be written.
        """
        size = self.size(row)
        rows_full = len(self._group) == self._layout.max_rows
        if self._group and (rows_full or self._group_bytes + size > self._layout.max_bytes):
            self._end_group()
        self._group.append(row)
        self._group_bytes += size
        self.num_rows += 1

    def publish(self) -> None:
        """Put the file in its place, durably; called once.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            if self._group or self._file is None:
                self._end_group()
            assert self._file is not None
            with self._writing():
                # A failed write of a group shows here, before the file has its footer.
                self._await_written()
                self._thread.shutdown()
                self._file.close()
                take_place(self._temporary, self._path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written; nothing where it was published."""
        self._thread.shutdown()
        if self._file is not None:
            # a full disk refuses the footer
            with contextlib.suppress(OSError, pa.ArrowException):
                self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _end_group(self) -> None:
        with self._writing():
            batch = self.batch(self._group)
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = pq.ParquetWriter(
                    self._temporary, batch.schema, **self._layout.options
                )
            # Two row groups are held at most: this one, and the one that is being written.
            self._await_written()
            if batch.num_rows:
                write = self._file.write_batch
                self._written = self._thread.submit(
                    write, batch, row_group_size=batch.num_rows
                )
        self._group = []
        self._group_bytes = 0

    def _await_written(self) -> None:
        if self._written is not None:
            self._written.result()
            self._written = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise write_failure(
                f"{self._path} cannot be written", self._path, error
            ) from error


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


def shrink_shard(
    path: Path, keeps: Sequence[bool], layout: ShardLayout, is_current: Callable[[], bool]
) -> bool:
    """Put a shard of the rows that stay in the place of ``path``, durably; where none stays, remove
    it. A reader that has the file open goes on with the old one.

    Args:
        path: the shard.
        keeps: for each row, in order.
        layout: of its kind.
        is_current: asked right before the shard is replaced; where it says no, nothing is.

    Returns:
        Whether it was replaced.

    Raises:
        DamagedShardError: the shard cannot be read; it stays as it is.
        StoreError: the new one cannot be written; likewise.
    """
    temporary = temporary_beside(path)
    try:
        if any(keeps):
            _copy(path, temporary, keeps, layout)
        if not is_current():
            return False
        if any(keeps):
            take_place(temporary, path)
        else:
            path.unlink()
            sync_path(path.parent)
        return True
    except (OSError, pa.ArrowException) as error:
        raise write_failure(f"{path} cannot be rewritten", path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _copy(path: Path, temporary: Path, keeps: Sequence[bool], layout: ShardLayout) -> None:
    with reading_shard(f"{path} cannot be read as a shard"):
        file = shard_file(path)
    with file, pq.ParquetWriter(temporary, file.schema_arrow, **layout.options) as writer:
        for group in _row_groups(_kept(path, file, keeps), layout):
            writer.write_table(group, row_group_size=group.num_rows)


def _kept(path: Path, file: pq.ParquetFile, keeps: Sequence[bool]) -> Iterator[pa.Table]:
    """The rows that stay, by row group; reads no row group of which none does."""
    first = 0
    for number in range(file.num_row_groups):
        own = keeps[first : first + file.metadata.row_group(number).num_rows]
        first += len(own)
        if any(own):
            with reading_shard(f"row group {number} of {path} cannot be read"):
                table = file.read_row_group(number, use_threads=False)
            yield table.filter(pa.array(own))


def _row_groups(parts: Iterator[pa.Table], layout: ShardLayout) -> Iterator[pa.Table]:
    """Small parts together, as large as a row group may be."""
    group: list[pa.Table] = []
    rows = size = 0
    for part in parts:
        rows += part.num_rows
        size += part.nbytes
        if group and (rows > layout.max_rows or size > layout.max_bytes):
            yield pa.concat_tables(group)
            group = []
            rows = part.num_rows
            size = part.nbytes
        group.append(part)
    if group:
        yield pa.concat_tables(group)
