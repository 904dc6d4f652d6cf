"""Row tables: rows of one source by number, read where they are asked for.

- A row knows its place, ``file:line`` or ``row N of FILE``, for errors.
- Of a JSONL file only the offsets of its lines are held; of a large Parquet file, nothing but a
  copy on disk that can be read anywhere; of what ``datasets`` holds, nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from agentrl.errors import DataError
from agentrl.types.user_code.values import private_copy
from agentrl.types.user_code.wall import failed_as, wall

T = TypeVar("T")

LocatedRow = tuple[str, Any]
"""A row after its place, ``file:line`` or ``row N of FILE``."""

MOST_HELD_ROWS = 5_000_000
"""Rows of a function that are held; one that yields more is meant to be streamed."""

_SMALL_BYTES = 64 * 2**20
_SPOOL_ROWS = 1024


class Parts(Generic[T]):
    """Parts of a whole, one behind the other.

    Attributes:
        bounds: where each part begins, and the last one ends.

    Args:
        parts: in order.
        sizes: of each.
    """

    def __init__(self, parts: Sequence[T], sizes: Iterable[int]) -> None:
        self.parts = parts
        self.bounds = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def find(self, index: int) -> tuple[T, int]:
        """The part that has an index, and its index there."""
        place = int(np.searchsorted(self.bounds, index, side="right")) - 1
        return self.parts[place], index - int(self.bounds[place])


class SourceRows(Protocol):
    """The rows of a source."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Any:
        """A row."""
        ...

    def where(self, index: int) -> str:
        """Its place."""
        ...


class JsonlTable:
    """The lines of a JSONL file, without empty ones.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        # An array holds an offset in 8 bytes; a list of integers would take 36 or more.
        self._starts = array("q")
        self._lines = array("q")
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if limit is not None and len(self._lines) >= limit:
                    break
                if line.strip():
                    self._starts.append(offset)
                    self._lines.append(number)
                offset += len(line)
        # read at offsets from any thread, which a position shared by all would not allow
        self._file = path.open("rb", buffering=0)

    def __len__(self) -> int:
        return len(self._lines)

    def row(self, index: int) -> Any:
        """The value of a line.

        Raises:
            DataError: it is no JSON, or not UTF-8.
        """
        # A line may be longer than one read, and threads share the file: each reads at its own
        # offset.
        line = b""
        while not line.endswith(b"\n"):
            size = max(65536, len(line))
            more = os.pread(self._file.fileno(), size, self._starts[index] + len(line))
            if not more:
                break
            end = more.find(b"\n")
            line += more if end < 0 else more[: end + 1]
        try:
            return json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where(index)} is not UTF-8: {error}") from error
        # Of the one kind or another, such as a number of too many digits.
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.where(index)} is not JSON: {error}") from error

    def where(self, index: int) -> str:
        return f"{self._path}:{self._lines[index]}"


class ParquetTable:
    """The rows of a Parquet file. A small one is held as Arrow; a larger one is decoded piece by
    piece into a temporary file without a name, from which rows are mapped.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._path = path
        with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(n).total_byte_size for n in groups)
            batches = file.iter_batches(batch_size=_SPOOL_ROWS)
            held = (
                list(batches)
                if size <= _SMALL_BYTES
                else _spooled(batches, file.schema_arrow)
            )
        self._batches = Parts(held, [batch.num_rows for batch in held])

    def __len__(self) -> int:
        return len(self._batches)

    def row(self, index: int) -> Any:
        """A row as a mapping of its columns."""
        batch, own = self._batches.find(index)
        return batch.slice(own, 1).to_pylist()[0]

    def where(self, index: int) -> str:
        return f"row {index} of {self._path}"


def _spooled(batches: Iterable[Any], schema: Any) -> Sequence[Any]:
    """The same batches, mapped from a file of Arrow's that is gone with them."""
    import pyarrow as pa

    descriptor, name = tempfile.mkstemp(prefix="agentrl-rows-")
    os.close(descriptor)
    try:
        with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        reader = pa.ipc.open_file(pa.memory_map(name))
    finally:
        # A mapped file stays until nobody reads it, and no kill leaves one behind.
        os.unlink(name)
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


class HeldTable:
    """Rows that can be asked for by number already: a list, a data set of ``datasets`` or torch."""

    def __init__(self, rows: Any, name: str) -> None:
        self._rows = rows
        self._name = name
        self._size = len(rows)

    def __len__(self) -> int:
        return self._size

    def row(self, index: int) -> Any:
        """A copy of a row, which its reader may change."""
        return private_copy(self._rows[index])

    def where(self, index: int) -> str:
        return f"row {index} of {self._name}"


class JoinedTable:
    """Several tables, one behind the other."""

    def __init__(self, tables: Sequence[SourceRows]) -> None:
        self._tables = Parts(tables, map(len, tables))

    def __len__(self) -> int:
        return len(self._tables)

    def row(self, index: int) -> Any:
        """A row of the table that has it."""
        table, own = self._tables.find(index)
        return table.row(own)

    def where(self, index: int) -> str:
        table, own = self._tables.find(index)
        return table.where(own)


def is_table(rows: object) -> bool:
    """Whether rows can be asked for by number; others are yielded, maybe without an end."""
    return hasattr(rows, "__getitem__") and hasattr(rows, "__len__")


def held(rows: Iterable[Any], name: str, setting: str, limit: int | None) -> HeldTable:
    """A table of what a function gave; of rows that it yields at most ``limit`` are taken.

    Raises:
        DataError: it has no end, as far as can be told.
    """
    if is_table(rows):
        return HeldTable(rows, name)
    most = MOST_HELD_ROWS if limit is None else limit
    # a function may yield one row again and again, each time with other values
    taken = list(islice(map(private_copy, rows), most + (limit is None)))
    if limit is None and len(taken) > MOST_HELD_ROWS:
        raise DataError(
            f"{setting}='{name}' gave more than {MOST_HELD_ROWS:,} rows; if it yields for ever, "
            "set data.stream=true, data.shuffle=false and train.steps"
        )
    return HeldTable(taken, name)


def read_row(table: SourceRows, index: int) -> LocatedRow:
    """A row of a table behind its place.

    Raises:
        DataError: it cannot be read; its place is named.
    """
    where = table.where(index)
    # A disk, or a user's own class that decodes a row when it is asked for it.
    remedy = "; it is asked for by its number, from 0, each time that it is drawn"
    with wall(failed_as(DataError, f"{where} cannot be read:", remedy)):
        return where, table.row(index)


def located(table: SourceRows) -> Iterator[LocatedRow]:
    """Each row of a table with its place."""
    return (read_row(table, index) for index in range(len(table)))
