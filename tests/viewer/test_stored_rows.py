"""Stored rows: the columns of live and sealed trajectories, each once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.store import Annotation, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import (
    CallProblem,
    CallRecord,
    Segment,
    SegmentKind,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from agentrl.viewer.analysis.blame import blame, trained_tokens
from agentrl.viewer.analysis.stored_rows import read_episodes, stored_rows
from tests.kit.episodes import trajectory
from tests.kit.episodes import turn as made_turn

ASKED = {"role": "user", "content": "How much?"}


def turn(index: int, text: str, calls: tuple[CallRecord, ...] = ()) -> Turn:
    context = Segment(SegmentKind.TEMPLATE if index else SegmentKind.PROMPT, np.arange(3))
    sampled = Segment(SegmentKind.POLICY, np.array([7, 8]), np.array([-0.25, -0.5]), 1)
    observed = () if index else (ASKED,)
    return made_turn(index, [context], [sampled], text, observed=observed, calls=calls)


def played(group_index: int, text: str = "done") -> Trajectory:
    well = CallRecord(ToolCall("a", "python", {}), None, ToolResult("a", "python", "4"))
    slow = CallRecord(
        ToolCall("b", "python", {}),
        None,
        ToolResult("b", "python", "late", error="timeout"),
    )
    broken = CallRecord(None, CallProblem("c", "unclosed", "close it", "<tool"), None)
    task = Task(f"task-{group_index}", (ASKED,), data_source="code")
    turns = turn(0, "I look", (well, slow)), turn(1, text, (broken,))
    return trajectory(*turns, group=group_index, task=task, reward=1.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Groups 0 and 1 sealed, group 2 live; group 1 was written twice."""
    made = RunDirectory.create(tmp_path / "run")
    writer = TrajectoryWriter(made)
    writer.write(played(0), 1)
    writer.write(played(1, "old"), 1)
    writer.seal(1)
    writer.write(played(1, "new"), 2)
    writer.seal(2)
    writer.write(played(2), 3)
    writer.flush()
    return made


def test_episodes_have_text_and_outcomes(run: RunDirectory) -> None:
    reader = TrajectoryReader(run)

    found = {one.id: one for one in read_episodes(run, reader, reader.summaries())}

    assert sorted(found) == ["0-0-0", "1-0-0", "2-0-0"]
    assert found["1-0-0"].texts == ("I look", "new")
    assert found["2-0-0"].calls == (
        ("python ok", "python timeout"),
        ("(unreadable call) unclosed",),
    )
    assert (found["0-0-0"].prompt, found["0-0-0"].task_id) == ("How much?", "task-0")


def test_only_the_columns_that_are_asked_for(run: RunDirectory) -> None:
    reader = TrajectoryReader(run)

    rows = list(stored_rows(run, reader, reader.summaries(), ("reward", "logprobs")))

    assert {frozenset(row) for row in rows} == {
        frozenset({"id", "recorded_at", "reward", "logprobs"})
    }
    for row in rows:
        sampled = row["logprobs"][~np.isnan(row["logprobs"])]
        assert sampled.tolist() == [-0.25, -0.5, -0.25, -0.5]


def test_blame_over_a_run(run: RunDirectory) -> None:
    weight = np.array([0.25, 0.25, 0.0, 0.5], np.float32)
    loss = np.array([1.0, -1.0, 9.0, 4.0], np.float32)
    notes = [
        Annotation(name, 4, arrays={"loss_weight": weight, "token_loss": loss})
        for name in ("0-0-0", "2-0-0")
    ]

    reader = TrajectoryReader(run)
    tokens = list(trained_tokens(run, reader, reader.summaries(), notes))
    found = blame(tokens, "loss", "token", limit=2)

    assert found.total == pytest.approx(4.0)
    # the last token of each: three of context, two sampled, three of context, one sampled
    assert {(row.id, row.turn, row.token) for row in found.rows} == {
        ("0-0-0", 1, 9),
        ("2-0-0", 1, 9),
    }


def test_a_damaged_shard_is_named(run: RunDirectory) -> None:
    reader = TrajectoryReader(run)
    summaries = reader.summaries()
    (shard,) = run.shard_path(2, "driver", 1).parent.glob("*.parquet")
    shard.write_bytes(b"PAR1 and no more")

    with pytest.raises(StoreError, match=f"{shard.name} cannot be read as a shard"):
        list(stored_rows(run, reader, summaries, ("reward",)))
