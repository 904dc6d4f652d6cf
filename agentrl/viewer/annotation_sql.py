"""Annotation SQL: the view ``annotations`` of a run, sealed and live, as ``TrajectoryReader`` has
them: each once, without those that a resume took back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.store.annotations.annotation import encode_annotation
from agentrl.store.annotations.files import live_table, read_ids
from agentrl.store.annotations.index import AnnotationIndex
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.jsonl import Damage

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
    return live_table(list(map(encode_annotation, AnnotationIndex(run, on_damage).live())))


def create_annotations(
    connection: duckdb.DuckDBPyConnection,
    rollbacks: Rollbacks,
    live: pa.Table,
    shards: Sequence[Path],
) -> None:
    """Makes the view; the table ``index_table`` has the time of each id's newest record.

    Args:
        connection: to DuckDB.
        rollbacks: of the run.
        live: of ``live_annotations``, read before the shards were listed: what is sealed meanwhile
            is then found twice, never missed.
        shards: those that can be read.
    """
    connection.register("annotations_table", live)
    connection.register("resumes_table", _resumes(rollbacks.steps))
    found = live_and_sealed("annotations_table", _SAME, shards)
    standing = _STANDING.format(found=found, stage=_STAGE, resumes=rollbacks.count)
    connection.execute(f"CREATE VIEW annotations AS {standing}")


def live_and_sealed(live: str, key: Iterable[str], shards: Sequence[Path]) -> str:
    """A query of the rows of shards and of a table of live ones, each row once.

    Args:
        live: the table's name.
        key: the columns by which a row of the one is a row of the other.
        shards: the files.
    """
    found = f"SELECT * FROM {live}"
    if not shards:
        return found
    same = " AND ".join(f"shard.{name} = {live}.{name}" for name in key)
    options = "union_by_name = true, hive_partitioning = false"
    sealed = f"read_parquet({sql_list(shards)}, {options})"
    found += f" WHERE NOT EXISTS (SELECT 1 FROM {sealed} AS shard WHERE {same})"
    return f"{found} UNION ALL BY NAME SELECT * FROM {sealed}"


def sql_list(paths: Iterable[Path]) -> str:
    """The paths as a list of texts in SQL."""
    quoted = ("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"[{', '.join(quoted)}]"


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


def _resumes(steps: Sequence[Mapping[str, int]]) -> pa.Table:
    rows = [
        {"number": number, "stage": stage, "step": step}
        for number, own in enumerate(steps)
        for stage, step in own.items()
    ]
    schema = pa.schema(
        [("number", pa.int64()), ("stage", pa.string()), ("step", pa.int64())]
    )
    return pa.Table.from_pylist(rows, schema=schema)
