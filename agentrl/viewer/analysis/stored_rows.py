"""Stored rows: chosen columns of many trajectories, each sealed shard read once.

``TrajectoryReader.get`` reads one trajectory whole. An analysis wants little of many: the columns
that it names are all that is read of a sealed shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.store import NoTrajectoryError, RunDirectory, TrajectoryReader, TrajectorySummary
from agentrl.store.shard import shard_file
from agentrl.store.trajectories.columns import ARRAYS

_BATCH = 64

Row = dict[str, Any]


def stored_rows(
    run: RunDirectory,
    reader: TrajectoryReader,
    summaries: Iterable[TrajectorySummary],
    columns: Sequence[str],
) -> Iterator[Row]:
    """Columns of trajectories, each once: those of sealed shards in the order of the files, then
    the live ones.

    Args:
        run: where.
        reader: the run's.
        summaries: which; of several records of one id the one that the summary tells of.
        columns: by name; those in ``ARRAYS`` come as numpy arrays ``[N]``.

    Raises:
        StoreError: a file is damaged.
    """
    sought = {summary.id: summary for summary in summaries}
    names = tuple(dict.fromkeys(("id", "recorded_at", *columns)))
    # A trajectory lies in a shard of the step in which it ended.
    for step in sorted({summary.step for summary in sought.values()}):
        for path in sorted(run.shard_path(step, "writer", 0).parent.glob("*.parquet")):
            for row in _sealed(path, names):
                summary = sought.get(row["id"])
                if summary is not None and summary.recorded_at == row["recorded_at"]:
                    del sought[row["id"]]
                    yield row
    for trajectory_id in sought:
        try:
            whole, arrays = reader.row(trajectory_id)
        except NoTrajectoryError:
            # dropped by store.keep since it was listed
            continue
        yield {
            name: getattr(arrays, name) if name in ARRAYS else whole[name]
            for name in names
            if name in ARRAYS or name in whole
        }


def _sealed(path: Path, names: Sequence[str]) -> Iterator[Row]:
    try:
        with shard_file(path) as file:
            there = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=_BATCH, columns=there):
                yield from _rows(batch)
    except FileNotFoundError:
        # store.keep left nothing of it
        return
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read as a shard: {error}") from error


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    arrays = [name for name in batch.schema.names if name in ARRAYS]
    plain = batch.drop_columns(arrays).to_pylist()
    for index, row in enumerate(plain):
        for name in arrays:
            row[name] = np.asarray(batch[name][index].values.to_numpy())
        yield row
