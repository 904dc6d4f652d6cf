"""The page of the format names every column as it is, and other programs read the shards so."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.store.trajectories.columns import ARRAYS, COLUMNS, SCHEMA, SIDE
from agentrl.types import Trajectory

Make = Callable[..., Trajectory]
ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(\w+)` \| ([\w<>]+) \| .* \| (?:`(.*)`)? ?\|$", re.MULTILINE)
DATA = Path(__file__).parent / "data"


def arrow_type(kind: pa.DataType) -> str:
    return f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)


def test_the_page_has_every_column_with_its_type_and_empty_value() -> None:
    page = (ROOT / "docs" / "trajectory-format.md").read_text(encoding="utf-8")
    written = {name: (kind, empty or None) for name, kind, empty in ROW.findall(page)}
    expected: dict[str, tuple[str, str | None]] = {
        name: (
            arrow_type(column.type),
            None if column.needed else repr(column.empty).replace("'", '"'),
        )
        for name, column in {**COLUMNS, **ARRAYS}.items()
    }
    expected[SIDE] = ("binary", 'b""')
    assert written == expected
    assert list(written) == SCHEMA.names


def test_duckdb_reads_shards_of_both_formats_in_one_table(tmp_path: Path) -> None:
    for name in ("format-1", "format-2"):
        shutil.copytree(DATA / name / "traj" / "sealed", tmp_path / name)
    read = f"read_parquet('{tmp_path}/*/*/*.parquet', hive_partitioning=false, union_by_name=true)"
    rows = duckdb.sql(
        f"""
        SELECT coalesce(group_index, draw), step, stage, tools, len(token_ids), logprobs[5]
        FROM {read} WHERE id = '0-0-0' ORDER BY stage NULLS FIRST
        """
    ).fetchall()
    assert rows == [(0, 1, None, None, 13, -0.125), (0, 1, "rl", ["calculate"], 13, -0.125)]


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
