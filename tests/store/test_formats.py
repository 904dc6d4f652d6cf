"""Formats: files of format 1 and 2 are read alike, and what a file lacks has its empty value."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.store import RunDirectory, TrajectoryReader, TrajectorySummary, TrajectoryWriter
from agentrl.store.trajectories.columns import COLUMNS, FORMAT_KEY, SCHEMA, SUMMARY_COLUMNS
from agentrl.types import Trajectory
from tests.store import kept_run
from tests.store.test_store_codec import same

Make = Callable[..., Trajectory]
DATA = Path(__file__).parent / "data"
ADDED: dict[str, dict[str, Any]] = {"format-1": {}, "format-2": kept_run.PLACES}
"""What a trajectory of each format has beside that of format 1."""


@pytest.fixture(params=ADDED)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RunDirectory, dict[str, Any]]:
    """A kept run, and what its format adds."""
    shutil.copytree(DATA / request.param, tmp_path / "run")
    return RunDirectory.open(tmp_path / "run"), ADDED[request.param]


def test_every_trajectory_of_either_format_is_read_whole(
    kept: tuple[RunDirectory, dict[str, Any]],
) -> None:
    run, added = kept
    reader = TrajectoryReader(run)
    stage = "rl/" if added else ""
    assert {one.id: one.step for one in reader.summaries()} == {
        f"{stage}sums/before/greedy/0-0-0": 0,
        "0-0-0": 1,
        "0-1-0": 1,
        "1-0-0": 2,  # live
    }
    for own in kept_run.episodes(**added).values():
        for trajectory in own:
            assert same(reader.get(trajectory.id).trajectory, trajectory)
    assert reader.damage == []


def test_annotations_of_either_format_are_read(kept: tuple[RunDirectory, dict[str, Any]]) -> None:
    annotation = TrajectoryReader(kept[0]).get("0-0-0").annotation
    assert annotation.values["trained_step"] == 1
    assert annotation.arrays["old_logprobs"].tolist() == [0, -0.25, -0.5, -0.75, -1, -1.25, -1.5]


@pytest.mark.parametrize("live", [False, True])
def test_format_1_has_empty_values_where_it_says_nothing(tmp_path: Path, live: bool) -> None:
    shutil.copytree(DATA / "format-1", tmp_path / "run")
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "run"))
    trajectory_id = "1-0-0" if live else "0-0-0"
    (one,) = [summary for summary in reader.summaries() if summary.id == trajectory_id]
    assert (one.group_index, one.rollout_index) == (int(live), 0)
    assert (one.stage, one.env, one.agents, one.tools) == ("", "", (), ())
    assert (one.group_size, one.started_at, one.ended_at) == (0, 0.0, 0.0)
    assert (one.num_calls, one.num_tool_errors) == (None, None)
    row, _ = reader.row(trajectory_id)
    assert set(row) == set(COLUMNS)
    assert row["reasons"] == "{}"


def test_format_2_says_what_was_called_where_and_when(tmp_path: Path) -> None:
    shutil.copytree(DATA / "format-2", tmp_path / "run")
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "run"))
    one = reader.get("0-0-0").summary
    assert (one.stage, one.env, one.group_size) == ("rl", "SumEnv", 2)
    assert (one.started_at, one.ended_at) == (1.75e9, 1.75e9)
    assert (one.num_calls, one.num_tool_errors, one.tools) == (3, 2, ("calculate",))
    assert one.agents == ("main", "checker")


def test_a_turn_record_names_its_sequence(tmp_path: Path, make: Make) -> None:
    from agentrl.store.json_text import from_json
    from agentrl.store.trajectories.turn_record import sequence_indices

    shutil.copytree(DATA / "format-2", tmp_path / "run")
    row, _ = TrajectoryReader(RunDirectory.open(tmp_path / "run")).row("0-0-0")
    assert [turn["sequence"] for turn in from_json(row["turns"])] == [0, 0, 1]
    assert [turn["agent"] for turn in from_json(row["turns"])] == ["main", "main", "checker"]
    # 0 ─ 1 ─ 4, 0 ─ 2, and 3 begins anew
    (turn,) = make(0).turns
    parents = (None, 0, 0, None, 1)
    turns = [
        type(turn)(index, parent, (), (), "", turn.message) for index, parent in enumerate(parents)
    ]
    assert sequence_indices(turns) == [0, 0, 1, 2, 0]


def test_a_run_of_format_1_that_goes_on_gets_shards_of_format_2(tmp_path: Path, make: Make) -> None:
    shutil.copytree(DATA / "format-1", tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    assert run.read_record()["format"] == 1
    with TrajectoryWriter(run) as writer:
        assert writer.counts.recovered == 1  # a live line of format 1, sealed as one of format 2
        writer.write(make(7, stage="rl"), 3)

    assert RunDirectory.open(run.root).read_record() == {"format": 2, "seed": 3}
    found = {
        path.parent.name: pq.read_metadata(path).metadata.get(FORMAT_KEY, b"none")
        for path in run.sealed_folder.rglob("*.parquet")
    }
    assert found == {
        "step=000000": b"none",
        "step=000001": b"none",
        "step=000002": b"2",
        "step=000003": b"2",
    }
    reader = TrajectoryReader(run)
    recovered = kept_run.episodes()[2][0]
    assert same(reader.get("1-0-0").trajectory, recovered)
    assert reader.get("7-0-0").summary.stage == "rl"
    assert reader.damage == []


def test_a_shard_without_a_column_has_its_empty_value(run: RunDirectory, make: Make) -> None:
    trajectory = make(0, stage="rl", env="Env", group_size=8)
    with TrajectoryWriter(run) as writer:
        writer.write(trajectory, 0)
    path = run.shard_path(0, "driver", 1)
    optional = [name for name, column in COLUMNS.items() if not column.needed]
    lacking = [*optional, "policy_versions", "side"]
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(lacking), path)

    stored = TrajectoryReader(run).get("0-0-0")
    for name in SUMMARY_COLUMNS:
        if name in optional and name != "rewards":
            assert getattr(stored.summary, name) == COLUMNS[name].empty
    assert (stored.summary.rewards, stored.trajectory.rewards) == ({}, {})
    policy = stored.trajectory.turns[0].completion[0]
    assert policy.logprobs is not None
    assert policy.logprobs.tolist() == [-0.25, -0.5]


def test_columns_that_are_unknown_are_passed_over(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    path = run.shard_path(0, "driver", 1)
    table = pq.read_table(path, partitioning=None)
    table = table.append_column("mood", pa.array(["good"])).replace_schema_metadata(None)
    pq.write_table(table, path)

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
            {pa.string(): pa.large_string(), pa.list_(pa.int32()): pa.large_list(pa.int64())}.get(
                field.type, field.type
            ),
        )
        for field in table.schema
    ]
    pq.write_table(table.cast(pa.schema(wide)), path)

    assert same(TrajectoryReader(run).get("0-0-0").trajectory, make(0))


def test_a_shard_of_a_newer_format_is_named(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    path = run.shard_path(0, "driver", 1)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata({FORMAT_KEY: b"3"}), path)

    reader = TrajectoryReader(run)
    assert reader.summaries() == []
    assert reader.damage == [
        f"{path} cannot be read as a shard: it has format 3 and this agentrl reads up to 2; use "
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
