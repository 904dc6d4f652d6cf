"""Formats: what was stored is read whole, and files of another format are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.errors import StoreError
from agentrl.store import (
    RunDirectory,
    TrajectoryReader,
    TrajectorySummary,
    TrajectoryWriter,
)
from agentrl.store.trajectories.columns import FORMAT_KEY, SCHEMA, SUMMARY_COLUMNS
from agentrl.types import Trajectory
from tests.store import kept_run
from tests.store.test_store_codec import same

Make = Callable[..., Trajectory]


@pytest.fixture
def kept(tmp_path: Path) -> RunDirectory:
    return kept_run.write_run(tmp_path / "run")


def test_every_trajectory_is_read_whole(kept: RunDirectory) -> None:
    reader = TrajectoryReader(kept)
    assert {one.id: one.step for one in reader.summaries()} == {
        "rl/sums/before/greedy/0-0-0": 0,
        "0-0-0": 1,
        "0-1-0": 1,
        "1-0-0": 2,  # live
    }
    for own in kept_run.episodes().values():
        for trajectory in own:
            assert same(reader.get(trajectory.id).trajectory, trajectory)
    assert reader.damage == []


def test_annotations_are_read(kept: RunDirectory) -> None:
    annotation = TrajectoryReader(kept).get("0-0-0").annotation
    assert annotation.values["trained_step"] == 1
    assert annotation.arrays["old_logprobs"].tolist() == [
        0,
        -0.25,
        -0.5,
        -0.75,
        -1,
        -1.25,
        -1.5,
    ]


def test_a_summary_says_what_was_called_where_and_when(kept: RunDirectory) -> None:
    one = TrajectoryReader(kept).get("0-0-0").summary
    assert (one.stage, one.env, one.group_size) == ("rl", "SumEnv", 2)
    assert (one.started_at, one.ended_at) == (1.75e9, 1.75e9)
    assert (one.num_calls, one.num_tool_errors, one.tools) == (3, 2, ("calculate",))
    assert one.agents == ("main", "checker")


def test_a_turn_record_names_its_sequence(kept: RunDirectory, make: Make) -> None:
    from agentrl.store.json_text import from_json
    from agentrl.store.trajectories.codec import sequence_indices

    row, _ = TrajectoryReader(kept).row("0-0-0")
    assert [turn["sequence"] for turn in from_json(row["turns"])] == [0, 0, 1]
    assert [turn["agent"] for turn in from_json(row["turns"])] == [
        "main",
        "main",
        "checker",
    ]
    # 0 ─ 1 ─ 4, 0 ─ 2, and 3 begins anew
    (turn,) = make(0).turns
    parents = (None, 0, 0, None, 1)
    turns = [
        type(turn)(index, parent, (), (), "", turn.message)
        for index, parent in enumerate(parents)
    ]
    assert sequence_indices(turns) == [0, 0, 1, 2, 0]


@pytest.mark.parametrize("column", ["group_index", "reasons", "policy_versions", "side"])
def test_a_shard_that_lacks_a_column_is_named(
    run: RunDirectory, make: Make, column: str
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
        writer.write(make(1), 1)
    path = run.shard_path(0, "driver", 1)
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns([column]), path)

    reader = TrajectoryReader(run)
    with pytest.raises(StoreError, match=f"it has no column '{column}'|no trajectory"):
        reader.get("0-0-0")
    assert reader.get("1-0-0").trajectory.group_index == 1


def test_columns_that_are_unknown_are_passed_over(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    path = run.shard_path(0, "driver", 1)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.append_column("mood", pa.array(["good"])), path)

    reader = TrajectoryReader(run)
    assert same(reader.get("0-0-0").trajectory, make(0))
    assert "mood" not in reader.row("0-0-0")[0]


def test_a_shard_that_another_library_wrote_is_read(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    path = run.shard_path(0, "driver", 1)
    table = pq.read_table(path, partitioning=None)
    wide = [
        pa.field(
            field.name,
            {
                pa.string(): pa.large_string(),
                pa.list_(pa.int32()): pa.large_list(pa.int64()),
            }.get(field.type, field.type),
        )
        for field in table.schema
    ]
    pq.write_table(table.cast(pa.schema(wide, table.schema.metadata)), path)

    assert same(TrajectoryReader(run).get("0-0-0").trajectory, make(0))


@pytest.mark.parametrize(
    ("metadata", "found"),
    [({FORMAT_KEY: b"3"}, "3"), ({FORMAT_KEY: b"1"}, "1"), ({}, "none")],
)
def test_a_shard_of_another_format_is_named_and_hides_itself_alone(
    run: RunDirectory, make: Make, metadata: dict[bytes, bytes], found: str
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
        writer.write(make(1), 1)
    path = run.shard_path(0, "driver", 1)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata(metadata), path)

    reader = TrajectoryReader(run)
    assert [one.id for one in reader.summaries()] == ["1-0-0"]
    assert reader.damage == [
        f"{path} cannot be read as a shard: it has format {found} and this agentrl reads 2; use "
        "the one that made it"
    ]


def test_a_summary_has_the_summary_columns_in_their_order() -> None:
    assert tuple(field.name for field in fields(TrajectorySummary)) == SUMMARY_COLUMNS


def test_a_shard_bears_its_format_and_the_schema(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    schema = pq.read_schema(run.shard_path(0, "driver", 1))
    assert schema.metadata[FORMAT_KEY] == b"2"
    assert schema.names == SCHEMA.names
    assert schema.types == SCHEMA.types
