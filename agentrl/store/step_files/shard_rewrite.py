"""Shard rewrite: takes rows out of a sealed shard of any kind, in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.store.atomic import sync_path, take_place, temporary_beside
from agentrl.store.step_files.shard_file import reading_shard, shard_file
from agentrl.store.step_files.shard_writer import ShardLayout
from agentrl.store.write_error import write_failure


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
