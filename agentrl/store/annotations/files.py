"""Annotation files: live by step, and sealed in shards.

A shard has the fixed columns and those arrays that its annotations have; what an annotation lacks
is null. The declared columns lie in the metadata under ``agentrl.columns``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.guards.parsing import parse_json
from agentrl.guards.regular_file import read_regular
from agentrl.guards.secret_mask import SecretMask
from agentrl.store.annotations.annotation import (
    FIXED,
    FULL_COLUMNS,
    TOKEN_COLUMNS,
    TRAJECTORY_COLUMNS,
    Annotation,
    AnnotationColumn,
    StoredAnnotation,
    arrays_of,
    encode_annotation,
    stored_annotation,
)
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.disk import write_json
from agentrl.store.jsonl import Record
from agentrl.store.run_directory import RunDirectory
from agentrl.store.shard import (
    ShardLayout,
    ShardWriter,
    place_of,
    reading_shard,
    shard_file,
)
from agentrl.store.step_files import StepFiles, read_framed, read_frames
from agentrl.types.arrays import AnyArray

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


def seal_annotations(
    live: Path, shard: Path, columns: Mapping[str, AnnotationColumn]
) -> int:
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


def live_table(rows: Sequence[LiveAnnotation]) -> pa.Table:
    """Annotations of live files as a shard would have them."""
    schema = _schema([record for record, _ in rows], {})
    return pa.Table.from_batches([_record_batch(rows, schema)])


def _schema(
    records: Sequence[Record], columns: Mapping[str, AnnotationColumn]
) -> pa.Schema:
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
    parts: dict[str, list[AnyArray | None]] = {
        name: [None] * len(rows) for name in schema.names if name not in _FIXED
    }
    for row, (record, data) in enumerate(rows):
        for name, array in arrays_of(record, data):
            parts[name][row] = array
    columns = [
        pa.array([record[name] for record, _ in rows], kind)
        for name, kind in _FIXED.items()
    ]
    for name, own in parts.items():
        kind = schema.field(name).type
        dtype = kind.value_type.to_pandas_dtype()
        arrays = (
            array if array is None else array.astype(dtype, copy=False) for array in own
        )
        columns.append(pa.array(arrays, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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


def read_values(path: Path) -> list[StoredAnnotation]:
    """Every annotation without its arrays, in order.

    Raises:
        StoreError: the file is no shard of annotations.
    """
    with _reading(path), shard_file(path) as file:
        rows = file.read(list(_FIXED), use_threads=False).to_pylist()
        return [stored_annotation(row, {}) for row in rows]


def _rows(table: pa.Table) -> Iterator[StoredAnnotation]:
    arrays = {
        name: table[name].combine_chunks()
        for name in table.column_names
        if name not in FIXED
    }
    fixed = table.select(list(_FIXED)).to_pylist()
    for index, row in enumerate(fixed):
        own = {
            name: column[index].values.to_numpy(zero_copy_only=False)
            for name, column in arrays.items()
            if column[index].is_valid
        }
        yield stored_annotation(row, own)


def _reading(path: Path) -> AbstractContextManager[None]:
    return reading_shard(f"{path} cannot be read as a shard of annotations")


_STANDARD = {one.name: one for one in (*TRAJECTORY_COLUMNS, *TOKEN_COLUMNS, *FULL_COLUMNS)}


class AnnotationFiles(StepFiles[LiveAnnotation]):
    """What a writer annotates. Used by one thread, but for ``columns``.

    Args:
        run: whose annotations.
        writer: the name of the files.
        mask: hides secrets in values.

    Raises:
        StoreError: what an earlier writer declared, or the run's resumes, cannot be read.
    """

    def __init__(self, run: RunDirectory, writer: str, mask: SecretMask) -> None:
        self._path = run.annotation_columns_folder / f"{writer}.json"
        self._mask = mask
        self._resumes = Rollbacks(run).count
        self._declared = {one.name: one for one in read_declared(self._path)}
        super().__init__(run.live_annotations_folder, run.sealed_annotations_folder, writer)

    @property
    def columns(self) -> Mapping[str, AnnotationColumn]:
        """Those that arrays may have: training's own, and those declared so far."""
        return {**_STANDARD, **self._declared}

    def declare(self, columns: Iterable[AnnotationColumn]) -> None:
        """Add columns to the writer's own.

        Raises:
            StoreError: they cannot be written.
        """
        known = self._declared
        self._declared = {**known, **{one.name: one for one in columns}}
        if self._declared != known:
            write_json(self._path, [one.record() for one in self._declared.values()])

    def append(self, annotation: Annotation, recorded_at: float) -> None:
        """Add an annotation to the live files of its step, and training's own columns to those
        declared once one has a value.

        Raises:
            OSError, StoreError: it cannot be written.
        """
        names = [*annotation.values, *annotation.arrays]
        if new := [one for one in names if one in _STANDARD and one not in self._declared]:
            self.declare(_STANDARD[one] for one in new)
        stored = StoredAnnotation(annotation, recorded_at, self._resumes)
        record, arrays = encode_annotation(stored)
        record["values_json"] = self._mask(record["values_json"])
        self.add(annotation.step, record, arrays, (record, arrays))

    def new_shard(self, path: Path) -> AnnotationShardWriter:
        """See ``StepFiles``; so for what follows."""
        return AnnotationShardWriter(path, self._declared)

    def seal_live(self, live: Path, shard: Path) -> int:
        return seal_annotations(live, shard, self._declared)


def read_declared(path: Path) -> list[AnnotationColumn]:
    """The columns of a file that ``declare`` wrote; none where there is no file.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        records = parse_json(read_regular(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} must list annotation columns: {error}; remove it"
        ) from error
    if not isinstance(records, list):
        raise StoreError(
            f"{path} must list annotation columns, got {type(records).__name__}"
        )
    return [AnnotationColumn.of_record(record) for record in records]
