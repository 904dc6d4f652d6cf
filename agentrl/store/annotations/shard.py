"""Annotation shards: Parquet files of one row an annotation, an array a column.

A shard has the fixed columns and those arrays that its annotations have; what an annotation lacks
is null. The declared columns lie in the metadata under ``agentrl.columns``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agentrl.store.annotations.annotation import Annotation, StoredAnnotation, arrays_of
from agentrl.store.annotations.columns import FIXED, AnnotationColumn
from agentrl.store.json_text import from_json
from agentrl.store.jsonl import Record
from agentrl.store.step_files.live import read_framed, read_frames
from agentrl.store.step_files.shard_file import place_of, reading_shard, shard_file
from agentrl.store.step_files.shard_writer import ShardLayout, ShardWriter

FORMAT = 2

_FIXED = {
    "id": pa.string(),
    "step": pa.int64(),
    "learner": pa.string(),
    "pass_index": pa.int32(),
    "resumes": pa.int32(),
    "recorded_at": pa.float64(),
    "values_json": pa.string(),
}
FIXED_SCHEMA = pa.schema(_FIXED)
"""Of the columns that every shard has."""
LAYOUT = ShardLayout(
    options={
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": False,
        "write_statistics": ["id", "step", "learner"],
    },
    max_rows=32,
    # so that reading one annotation reads little
    max_bytes=1 << 19,
)

LiveAnnotation = tuple[Record, bytes]
"""As a live file has it: its line, and the bytes of its arrays."""


class AnnotationShardWriter(ShardWriter[LiveAnnotation]):
    """Of a shard of annotations.

    Args:
        path: of the shard.
        columns: those declared.
        schema: of the shard; by default what the first row group has.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, AnnotationColumn],
        schema: pa.Schema | None = None,
    ) -> None:
        super().__init__(path, LAYOUT)
        self._columns = columns
        self._schema = schema
        self._taken: dict[str, str] | None = None
        """Names and dtypes of the arrays that were found to fit last."""

    def takes(self, row: LiveAnnotation) -> bool:
        """Whether the shard has a column for each of its arrays."""
        if self._schema is None:
            return True
        arrays = {name: dtype for name, dtype, _ in row[0]["arrays"]}
        if arrays != self._taken and all(
            name in self._schema.names
            and self._schema.field(name).type.value_type == pa.from_numpy_dtype(dtype)
            for name, dtype in arrays.items()
        ):
            self._taken = arrays
        return arrays == self._taken

    def batch(self, rows: Sequence[LiveAnnotation]) -> pa.RecordBatch:
        """See ``ShardWriter.batch``."""
        if self._schema is None:
            self._schema = _schema([record for record, _ in rows], self._columns)
        return _record_batch(rows, self._schema)

    def size(self, row: LiveAnnotation) -> int:
        """The bytes of its arrays."""
        return len(row[1])


def seal_annotations(live: Path, shard: Path, columns: Mapping[str, AnnotationColumn]) -> int:
    """Turn a live file into a shard, durably and in one step, a row group in memory at a time.

    Args:
        live: the lines' file.
        shard: where the shard goes; none is made of a file without annotations.
        columns: those declared.

    Returns:
        How many annotations it has.

    Raises:
        StoreError: a line or frame is damaged, or the shard cannot be written.
    """
    records = list(read_framed(live))
    if not records:
        return 0
    writer = AnnotationShardWriter(shard, columns, _schema(records, columns))
    return writer.write(_with_arrays(live, records))


def _with_arrays(live: Path, records: Sequence[Record]) -> Iterator[LiveAnnotation]:
    for start in range(0, len(records), LAYOUT.max_rows):
        part = records[start : start + LAYOUT.max_rows]
        frames = read_frames(live, [record["frame"] for record in part])
        yield from zip(part, frames, strict=True)


def _schema(records: Sequence[Record], columns: Mapping[str, AnnotationColumn]) -> pa.Schema:
    dtypes: dict[str, np.dtype[Any]] = {}
    for record in records:
        for name, dtype, _ in record["arrays"]:
            found = np.dtype(dtype)
            dtypes[name] = np.promote_types(dtypes.get(name, found), found)
    declared = json.dumps([column.record() for column in columns.values()])
    return pa.schema(
        [
            *(pa.field(name, kind, nullable=False) for name, kind in _FIXED.items()),
            *(
                pa.field(name, pa.list_(pa.from_numpy_dtype(dtype)))
                for name, dtype in dtypes.items()
            ),
        ],
        metadata={"agentrl.format": str(FORMAT), "agentrl.columns": declared},
    )


def _record_batch(rows: Sequence[LiveAnnotation], schema: pa.Schema) -> pa.RecordBatch:
    parts: dict[str, list[npt.NDArray[np.generic] | None]] = {
        name: [None] * len(rows) for name in schema.names if name not in _FIXED
    }
    for row, (record, data) in enumerate(rows):
        for name, array in arrays_of(record, data):
            parts[name][row] = array
    columns = [
        pa.array([record[name] for record, _ in rows], kind) for name, kind in _FIXED.items()
    ]
    columns += [_lists(own, schema.field(name).type) for name, own in parts.items()]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _lists(arrays: Sequence[npt.NDArray[np.generic] | None], kind: pa.ListType) -> pa.ListArray:
    ends = np.cumsum([0, *(0 if array is None else array.size for array in arrays)])
    given = [array for array in arrays if array is not None]
    dtype = kind.value_type.to_pandas_dtype()
    values = np.concatenate([np.zeros(0, dtype), *given]).astype(dtype, copy=False)
    missing = pa.array([array is None for array in arrays])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(values, kind.value_type), type=kind, mask=missing
    )


def read_ids(path: Path) -> list[str]:
    """The trajectory of each row, in order.

    Raises:
        StoreError: the file is no shard of annotations.
    """
    with _reading(path), shard_file(path) as file:
        ids: list[str] = file.read(["id"])["id"].to_pylist()
        return ids


def read_row(path: Path, index: int) -> StoredAnnotation:
    """One annotation; reads its row group alone.

    Raises:
        StoreError: the file is no shard of annotations, or has no such row.
    """
    with _reading(path), shard_file(path) as file:
        group, place = place_of(file, index)
        return next(_rows(file.read_row_group(group).slice(place, 1)))


def read_rows(path: Path) -> Iterator[StoredAnnotation]:
    """Every annotation, in order, a row group in memory at a time.

    Raises:
        StoreError: the file is no shard of annotations.
    """
    with _reading(path), shard_file(path) as file:
        for group in range(file.metadata.num_row_groups):
            yield from _rows(file.read_row_group(group))


def _rows(table: pa.Table) -> Iterator[StoredAnnotation]:
    arrays = {
        name: table[name].combine_chunks() for name in table.column_names if name not in FIXED
    }
    fixed = table.select(list(_FIXED)).to_pylist()
    for index, row in enumerate(fixed):
        own = {
            name: column[index].values.to_numpy(zero_copy_only=False)
            for name, column in arrays.items()
            if column[index].is_valid
        }
        annotation = Annotation(
            row["id"],
            row["step"],
            row["learner"],
            row["pass_index"],
            from_json(row["values_json"]),
            own,
        )
        yield StoredAnnotation(annotation, row["recorded_at"], row["resumes"])


def _reading(path: Path) -> AbstractContextManager[None]:
    return reading_shard(f"{path} cannot be read as a shard of annotations")
