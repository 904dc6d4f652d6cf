"""Annotation SQL: the view ``annotations`` of a run, sealed and live, as ``TrajectoryReader`` has
them: each once, without those that a resume took back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.store.annotations.annotation import StoredAnnotation
from agentrl.store.annotations.files import FIXED_SCHEMA, read_ids
from agentrl.store.annotations.index import AnnotationIndex
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.json_text import to_json

Damage = Callable[[StoreError], None]

_SAME = ("id", "step", "learner", "pass_index", "resumes", "recorded_at")
"""As ``StoredAnnotation.key`` has it."""
_STAGE = "coalesce(found.values_json ->> '$.stage', '')"
_STANDING = """
SELECT found.*, {stage} AS stage FROM ({found}) AS found LEFT JOIN index_table AS newest USING (id)
WHERE NOT EXISTS (
    SELECT 1 FROM resumes_table AS resume
    WHERE resume.number >= found.resumes AND resume.stage = {stage}
      AND found.step > resume.step
) AND (found.resumes >= {resumes} OR newest.recorded_at IS NULL
       OR found.recorded_at >= newest.recorded_at)
"""


def live_annotations(run: RunDirectory, on_damage: Damage) -> pa.Table:
    """Those that are in no shard yet, with their arrays."""
    live = AnnotationIndex(run, on_damage).live()
    names = dict.fromkeys(name for one in live for name in one.annotation.arrays)
    fixed = pa.Table.from_pylist([_fixed(one) for one in live], schema=FIXED_SCHEMA)
    return pa.table(
        {
            **dict(zip(fixed.column_names, fixed.columns, strict=True)),
            **{name: _lists(name, live) for name in names},
        }
    )


def create_annotations(
    connection: duckdb.DuckDBPyConnection,
    rollbacks: Rollbacks,
    live: pa.Table,
    shards: Sequence[Path],
    read_parquet: Callable[[Iterable[Path]], str],
) -> None:
    """Makes the view; the table ``index_table`` has the time of each id's newest record.

    Args:
        connection: to DuckDB.
        rollbacks: of the run.
        live: of ``live_annotations``, read before the shards were listed: what is sealed meanwhile
            is then found twice, never missed.
        shards: those that can be read.
        read_parquet: DuckDB's name of some files.
    """
    connection.register("annotations_table", live)
    connection.register("resumes_table", _resumes(rollbacks.steps))
    found = "SELECT * FROM annotations_table"
    if shards:
        same = " AND ".join(f"shard.{name} = annotations_table.{name}" for name in _SAME)
        sealed = read_parquet(shards)
        found += f" WHERE NOT EXISTS (SELECT 1 FROM {sealed} AS shard WHERE {same})"
        found += f" UNION ALL BY NAME SELECT * FROM {sealed}"
    standing = _STANDING.format(found=found, stage=_STAGE, resumes=rollbacks.count)
    connection.execute(f"CREATE VIEW annotations AS {standing}")


def readable_shards(run: RunDirectory, on_damage: Damage) -> list[Path]:
    """The shards of annotations that are not damaged."""
    found = []
    for path in sorted(run.sealed_annotations_folder.glob("step=*/*.parquet")):
        try:
            read_ids(path)
        except StoreError as error:
            on_damage(error)
        else:
            found.append(path)
    return found


def _fixed(one: StoredAnnotation) -> dict[str, Any]:
    own = one.annotation
    return {
        "id": own.trajectory_id,
        "step": own.step,
        "learner": own.learner,
        "pass_index": own.pass_index,
        "resumes": one.resumes,
        "recorded_at": one.recorded_at,
        "values_json": to_json(own.values),
    }


def _lists(name: str, live: Sequence[StoredAnnotation]) -> pa.Array:
    """``[A]`` the array ``name`` of A annotations; null where one has none."""
    arrays = [one.annotation.arrays.get(name) for one in live]
    dtype = np.result_type(*(array.dtype for array in arrays if array is not None))
    return pa.array(arrays, pa.list_(pa.from_numpy_dtype(dtype)))


def _resumes(steps: Sequence[Mapping[str, int]]) -> pa.Table:
    rows = [
        {"number": number, "stage": stage, "step": step}
        for number, own in enumerate(steps)
        for stage, step in own.items()
    ]
    schema = pa.schema([("number", pa.int64()), ("stage", pa.string()), ("step", pa.int64())])
    return pa.Table.from_pylist(rows, schema=schema)
