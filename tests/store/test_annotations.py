"""Annotations: kept by learner, step and pass, found again by trajectory and by step."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.store import (
    Annotation,
    AnnotationColumn,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    record_resume,
)
from agentrl.store.annotations import files
from agentrl.store.annotations.annotation import (
    FULL_COLUMNS,
    LOSS_REASONS,
    TOKEN_COLUMNS,
    TRAJECTORY_COLUMNS,
)
from agentrl.types import Trajectory

Make = Callable[..., Trajectory]

PAGE = Path(__file__).parents[2] / "docs" / "annotations.md"


def learned(
    trajectory_id: str, step: int, number: float = 0.5, **changes: Any
) -> Annotation:
    arrays = {
        "old_logprobs": np.array([-number, -2 * number], np.float32),
        "loss_reason": np.array([0, 2], np.int8),
    }
    fields = {"values": {"credit": number, "stage": "rl"}, "arrays": arrays} | changes
    return Annotation(trajectory_id, step, **fields)


def plain(annotation: Annotation) -> tuple[Any, ...]:
    arrays = {name: array.tolist() for name, array in annotation.arrays.items()}
    key = (
        annotation.trajectory_id,
        annotation.step,
        annotation.learner,
        annotation.pass_index,
    )
    return (*key, dict(annotation.values), arrays)


def test_each_learner_step_and_pass_comes_back_live_and_sealed(
    run: RunDirectory, make: Make
) -> None:
    told = [
        learned("0-0-0", 1),
        learned("0-0-0", 1, 0.25, learner="critic"),
        learned("0-0-0", 2, 0.125, pass_index=3),
        learned("1-0-0", 2, values={}, arrays={}),
    ]
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
        writer.write(make(1), 1)
        for annotation in told:
            writer.annotate(annotation)
        reader = TrajectoryReader(run)
        for sealed in (False, True):
            if sealed:
                writer.seal(1)
                writer.seal(2)
            writer.flush()
            stored = reader.get("0-0-0")
            assert [plain(one) for one in stored.annotations] == [
                plain(one) for one in told[:3]
            ]
            assert [plain(one) for one in reader.get("1-0-0").annotations] == [
                plain(told[3])
            ]
            assert [plain(one) for one in reader.annotations()] == [
                plain(one) for one in told
            ]
            critic = reader.annotations(step=1, learner="critic")
            assert [plain(one) for one in critic] == [plain(told[1])]
            # the critic's value of a name hides none of the actor's
            assert stored.annotation.arrays["old_logprobs"].tolist() == [-0.125, -0.25]
            assert stored.annotation.values == {"credit": 0.125, "stage": "rl"}
        assert writer.counts.annotations == 4
    assert not list(run.live_annotations_folder.rglob("*.jsonl"))
    assert reader.damage == []


def test_a_trajectory_without_annotations_has_an_empty_one(
    run: RunDirectory, make: Make
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
    stored = TrajectoryReader(run).get("0-0-0")
    assert stored.annotations == ()
    assert (stored.annotation.values, stored.annotation.arrays) == ({}, {})


def test_declared_columns_are_found_again_by_the_next_writer_too(run: RunDirectory) -> None:
    surprise = AnnotationColumn(
        "surprise", "token", "nats", "diverging", "How unlikely the token was."
    )
    verdict = AnnotationColumn(
        "verdict",
        "turn",
        scale="category",
        categories=("wrong", "right"),
        help="Of a judge.",
    )
    arrays = {"surprise": np.zeros(2), "verdict": np.zeros(1, np.int8)}
    with TrajectoryWriter(run) as writer:
        writer.declare([surprise, verdict])
        writer.annotate(Annotation("0-0-0", 1, arrays=arrays))
        writer.annotate(learned("0-0-0", 1))
    columns = TrajectoryReader(run).columns()
    assert columns["surprise"] == surprise
    assert columns["verdict"] == verdict
    # training's own need no declaration, and are there once one has a value
    assert columns["old_logprobs"].unit == "nats"
    assert columns["loss_reason"].categories[2] == "stale"
    assert "entropy" not in columns
    with TrajectoryWriter(run) as writer:
        writer.annotate(Annotation("0-0-0", 2, arrays=arrays))


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        (
            {"surprise": np.zeros(2)},
            r"'surprise' of trajectory '0-0-0' is an array and is not dec",
        ),
        ({"credit": np.zeros(2)}, r"'credit' .* is declared as a trajectory's value"),
        (
            {"ratio": np.zeros((2, 2))},
            r"'ratio' .* must be a one-dimensional array of numbers",
        ),
        (
            {"ratio": np.array(["x"])},
            r"must be a one-dimensional array of numbers, got dtype <U1",
        ),
        (
            {"ratio": np.zeros(2), "clipped": np.zeros(3)},
            r"'clipped' .* must have an entry for each token, as 'ratio' has 2, got 3",
        ),
    ],
)
def test_an_annotation_that_cannot_be_stored_is_refused_at_once(
    run: RunDirectory, arrays: dict[str, Any], told: str
) -> None:
    with TrajectoryWriter(run) as writer:
        with pytest.raises(StoreError, match=told):
            writer.annotate(Annotation("0-0-0", 1, arrays=arrays))
        writer.annotate(learned("0-0-0", 1))  # the writer is sound
        writer.flush()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "Loss"}, "must match .* got 'Loss'"),
        ({"name": "learner"}, "none of id, step, learner"),
        (
            {"level": "word"},
            "level of annotation column 'x' must be one of token, turn, traj",
        ),
        ({"scale": "category"}, "must name its categories"),
        ({"categories": ("a",)}, "its scale must be 'category', got 'linear'"),
    ],
)
def test_a_column_that_is_none_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(StoreError, match=told):
        AnnotationColumn(**({"name": "x", "level": "token"} | fields))


def test_what_a_resume_took_back_does_not_mix_in(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        for number, step in enumerate((1, 2, 3)):
            writer.write(make(number), step)
            writer.annotate(learned(f"{number}-0-0", step))
            writer.seal(step)
        writer.annotate(learned("2-0-0", 2, values={"stage": "warmup"}))
    record_resume(run, {"rl": 1, "warmup": 9})
    with TrajectoryWriter(run) as writer:  # the third trajectory is played again in step 2
        writer.write(make(2), 2)
        writer.annotate(learned("2-0-0", 2, 0.75))
        writer.seal(2)
    reader = TrajectoryReader(run)
    steps = [
        (one.trajectory_id, one.step, one.values["stage"]) for one in reader.annotations()
    ]
    assert [one.step for one in reader.annotations(stage="rl")] == [1, 2]
    assert list(reader.annotations(step=2, stage="warmup")) == []
    # of the warm-up nothing was taken back, but the id's record is newer than that annotation
    assert steps == [("0-0-0", 1, "rl"), ("2-0-0", 2, "rl")]
    (found,) = reader.get("2-0-0").annotations
    assert found.values["credit"] == 0.75
    assert reader.get("1-0-0").annotations == ()


def test_a_clock_that_goes_back_hides_no_annotation(
    run: RunDirectory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        writer.annotate(learned("0-0-0", 1))
    assert len(TrajectoryReader(run).get("0-0-0").annotations) == 1


def test_what_a_killed_writer_left_is_sealed_by_the_next(
    run: RunDirectory, make: Make
) -> None:
    writer = TrajectoryWriter(run)
    writer.write(make(0), 1)
    writer.annotate(learned("0-0-0", 1))
    writer.flush()
    copy = run.root.with_name("copy")
    shutil.copytree(run.root, copy)  # as a death leaves it
    writer.close()
    (live,) = (copy / "traj/ann/live").rglob("*.jsonl")
    with live.open("ab") as file:
        file.write(b'{"id": "1-0-')
    left = RunDirectory.open(copy)
    reader = TrajectoryReader(left)
    assert [plain(one) for one in reader.annotations()] == [plain(learned("0-0-0", 1))]
    assert reader.damage == []
    with TrajectoryWriter(left) as after:
        assert after.counts.recovered == 1
        reader = TrajectoryReader(left)
        assert [plain(one) for one in reader.annotations()] == [plain(learned("0-0-0", 1))]
        assert not list(left.live_annotations_folder.rglob("*.jsonl"))


def test_an_annotation_with_other_columns_than_those_before_it_is_sealed_with_them(
    run: RunDirectory,
) -> None:
    ratio = np.ones(2, np.float32)
    arrays = [{"ratio": ratio}] * 70  # two whole row groups, then others
    arrays += [{"ratio": ratio, "entropy": ratio}, {"ratio": np.full(2, 0.1)}, {}]
    with TrajectoryWriter(run) as writer:
        for number, own in enumerate(arrays):
            writer.annotate(learned(f"{number}-0-0", 1, arrays=own))
        writer.seal(1)
        writer.flush()
        assert not list(run.annotations_folder.rglob("*.tmp"))
        assert not list(run.live_annotations_folder.rglob("*.jsonl"))
    found = list(TrajectoryReader(run).annotations(step=1))
    assert [one.trajectory_id for one in found] == [f"{n}-0-0" for n in range(len(arrays))]
    assert [sorted(one.arrays) for one in found[69:]] == [
        ["ratio"],
        ["entropy", "ratio"],
        ["ratio"],
        [],
    ]
    assert found[71].arrays["ratio"].tolist() == [0.1, 0.1]


def test_sealing_annotations_reads_nothing_back(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_back(*_: Any) -> int:
        raise AssertionError("the live file was read")

    monkeypatch.setattr(files, "seal_annotations", read_back)
    with TrajectoryWriter(run) as writer:
        for number in range(70):
            writer.annotate(learned(f"{number}-0-0", 1))
    assert len(list(TrajectoryReader(run).annotations())) == 70


def test_a_damaged_shard_and_a_damaged_line_are_named_and_passed_over(
    run: RunDirectory, make: Make
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
        for step in (1, 2, 3):
            writer.annotate(learned("0-0-0", step))
            if step < 3:
                writer.seal(step)
        writer.annotate(learned("0-0-0", 3, 0.75))
        writer.flush()
        shard = next(run.sealed_annotations_folder.glob("step=000001/*.parquet"))
        shard.write_bytes(shard.read_bytes()[:-40])
        live = next(run.live_annotations_folder.rglob("*.jsonl"))
        whole = live.read_bytes()
        first, second = whole.splitlines(keepends=True)
        live.write_bytes(first[:50] + b"\n" + second)
        reader = TrajectoryReader(run)
        for _ in range(2):
            assert [one.step for one in reader.get("0-0-0").annotations] == [2, 3]
            assert [one.step for one in reader.annotations()] == [2, 3]
        assert len(reader.damage) == 2
        assert any(f"{shard} cannot be read" in told for told in reader.damage)
        assert any(f"{live}:1 must be a JSON object" in told for told in reader.damage)
        live.write_bytes(whole)


def test_duckdb_reads_the_shards(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.annotate(learned("0-0-0", 1))
        writer.annotate(learned("1-0-0", 1, arrays={}))
    files = str(run.sealed_annotations_folder / "*" / "*.parquet")
    rows = duckdb.sql(
        f"select id, old_logprobs[2], learner from '{files}' order by id"
    ).fetchall()
    assert rows == [("0-0-0", -1.0, "actor"), ("1-0-0", None, "actor")]


def test_the_page_has_every_column() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    details = (
        ("basic", TRAJECTORY_COLUMNS),
        ("tokens", TOKEN_COLUMNS),
        ("full", FULL_COLUMNS),
    )
    expected = [(one.name, detail, one.help) for detail, own in details for one in own]
    # these tell of token columns
    of_tokens = ("clip_frac", "old_logprobs_from")
    expected = [
        (name, "tokens" if name in of_tokens else d, told) for name, d, told in expected
    ]
    assert rows == expected
    listed = [f"{n} `{name}`" for n, name in enumerate(LOSS_REASONS)]
    assert all(f"| {name} |" in PAGE.read_text() for name in listed)
