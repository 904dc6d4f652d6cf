"""Lists, one trajectory, and the shards as other libraries load them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agentrl.errors import StoreError
from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Status, Trajectory

Make = Callable[..., Trajectory]


@pytest.fixture
def stored(run: RunDirectory, make: Make) -> RunDirectory:
    with TrajectoryWriter(run) as writer:
        writer.write(make(3), 2)
        writer.write(make(1), 1)
        writer.write(
            make(
                0, status=Status("failed", "sandbox", "no space"), reward=None, rewards={}
            ),
            1,
        )
        writer.write(make(0, label="code/before/greedy", purpose="eval"), 0)
    return run


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["code/before/greedy/0-0-0", "0-0-0", "1-0-0", "3-0-0"]),
        ({"step": 1}, ["0-0-0", "1-0-0"]),
        ({"label": ""}, ["0-0-0", "1-0-0", "3-0-0"]),
        ({"status": "failed"}, ["0-0-0"]),
        ({"task_id": "task-1", "purpose": "train"}, ["1-0-0", "3-0-0"]),
    ],
)
def test_filters(
    stored: RunDirectory, filters: dict[str, object], found: list[str]
) -> None:
    assert [entry.id for entry in TrajectoryReader(stored).summaries(**filters)] == found  # type: ignore[arg-type]


def test_a_summary_has_what_a_list_shows(stored: RunDirectory) -> None:
    (entry,) = TrajectoryReader(stored).summaries(step=2)

    assert (entry.rewards, entry.reward, entry.num_tokens, entry.num_policy_tokens) == (
        {"correct": 1.0},
        1.0,
        6,
        2,
    )


def test_a_failed_trajectory_keeps_its_reason(stored: RunDirectory) -> None:
    stored_failure = TrajectoryReader(stored).get("0-0-0")

    assert stored_failure.trajectory.status == Status("failed", "sandbox", "no space")
    assert stored_failure.summary.reward is None


def test_an_unknown_id_is_refused(stored: RunDirectory) -> None:
    with pytest.raises(StoreError, match="no trajectory '9-9-9'"):
        TrajectoryReader(stored).get("9-9-9")


def test_a_trajectory_that_is_sealed_while_the_reader_goes_on_is_found(
    run: RunDirectory, make: Make
) -> None:
    reader = TrajectoryReader(run)
    with TrajectoryWriter(run) as writer:
        for group_index in range(2):
            writer.write(make(group_index), 0)
        writer.flush()
        found = reader.get_many(["0-0-0", "1-0-0"])
        assert next(found).trajectory.group_index == 0
        writer.seal(0)
        writer.flush()

        assert next(found).trajectory.group_index == 1


def test_of_two_records_of_an_id_the_newest_counts(run: RunDirectory, make: Make) -> None:
    # a run that went back to a checkpoint rolls out the same draws again
    for text in ("first", "second"):
        with TrajectoryWriter(run) as writer:
            writer.write(make(0, text=text), 5)

    assert TrajectoryReader(run).get("0-0-0").trajectory.turns[0].text == "second"
    assert len(TrajectoryReader(run).summaries()) == 1


def test_datasets_loads_the_shards(stored: RunDirectory, tmp_path: Path) -> None:
    from datasets import load_dataset

    files = [str(path) for path in sorted(stored.sealed_folder.rglob("*.parquet"))]
    data = load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )

    rows = {row["id"]: row for row in data}
    assert set(rows) == {"code/before/greedy/0-0-0", "0-0-0", "1-0-0", "3-0-0"}
    assert rows["1-0-0"]["token_ids"] == [0, 1, 2, 3, 7, 8]
    assert rows["1-0-0"]["kinds"] == [0, 0, 0, 0, 1, 1]
    assert rows["1-0-0"]["logprobs"][4:] == [-0.25, -0.5]
    assert rows["1-0-0"]["prompt"] == "How much?"


def test_damaged_parts_are_named_and_passed_over(
    run: RunDirectory, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for step, kept in enumerate(("whole", "truncated", "narrow")):
        with TrajectoryWriter(run, kept) as writer:
            writer.write(make(step), step)
            writer.seal(step)
    truncated, narrow = (
        next(run.sealed_folder.glob(f"*/{name}*")) for name in ("trun", "narrow")
    )
    truncated.write_bytes(truncated.read_bytes()[:-100])
    pq.write_table(pq.read_table(narrow, partitioning=None).drop_columns(["id"]), narrow)

    reader = TrajectoryReader(run)
    for _ in range(2):  # a second look names nothing again
        assert [one.id for one in reader.summaries()] == ["0-0-0"]
        assert reader.get("0-0-0").summary.step == 0

    assert len(reader.damage) == 2
    for place in (
        str(truncated),
        f"{narrow} cannot be read as a shard: it has no column 'id'",
    ):
        assert any(place in told for told in reader.damage)
    told = [one for one in caplog.records if getattr(one, "event", "") == "damaged_part"]
    assert [one.getMessage() for one in told] == [
        f"{part}; it is passed over" for part in reader.damage
    ]


def test_a_damaged_live_line_hides_no_other(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
        writer.write(make(1, text="second"), 0)
        writer.flush()
        path = next(run.live_folder.glob("step=*/*.jsonl"))
        first, second = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(first[:20] + b"\n" + second)

        reader = TrajectoryReader(run)
        assert [one.id for one in reader.summaries()] == ["1-0-0"]
        assert reader.get("1-0-0").trajectory.turns[0].text == "second"
        assert len(reader.damage) == 1
        path.write_bytes(first + second)  # the writer seals it when it closes
