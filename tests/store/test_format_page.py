"""The page of the format names every column as it is, and other programs read the shards so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.store.trajectories.columns import ARRAYS, COLUMNS, SCHEMA, SIDE
from agentrl.types import Trajectory

Make = Callable[..., Trajectory]
ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(\w+)` \| ([\w<>]+) \| .* \|$", re.MULTILINE)


def arrow_type(kind: pa.DataType) -> str:
    return f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)


def test_the_page_has_every_column_with_its_type() -> None:
    page = (ROOT / "docs" / "trajectory-format.md").read_text(encoding="utf-8")
    expected = [(name, arrow_type(one.type)) for name, one in {**COLUMNS, **ARRAYS}.items()]
    assert ROW.findall(page) == [*expected, (SIDE, "binary")]
    assert [name for name, _ in ROW.findall(page)] == SCHEMA.names


def test_duckdb_counts_what_was_written(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        for group_index in range(70):
            writer.write(make(group_index, stage="rl"), group_index % 3)
    found = duckdb.sql(
        f"""
        SELECT step, count(*), sum(num_tokens)
        FROM read_parquet('{run.sealed_folder}/*/*.parquet', hive_partitioning=false)
        WHERE stage = 'rl' GROUP BY step ORDER BY step
        """
    ).fetchall()
    assert found == [(0, 24, 144), (1, 23, 138), (2, 23, 138)]
