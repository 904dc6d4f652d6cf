"""Which trajectories ``store.keep`` leaves, with what was learned of them, and what is told of the
others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from agentrl.errors import ConfigError, StoreError
from agentrl.store import (
    Annotation,
    KeepSpec,
    NoTrajectoryError,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    read_shard,
)
from agentrl.store.retention import NotedTrajectories, fits
from agentrl.types import Trajectory
from agentrl.viewer.notes import NoteBook

Make = Callable[..., Trajectory]


def learned(trajectory_id: str, step: int) -> Annotation:
    return Annotation(trajectory_id, step, arrays={"ratio": np.ones(2, np.float32)})


def write_steps(
    run: RunDirectory,
    make: Make,
    steps: range,
    keep: KeepSpec,
    a_step: int = 4,
    **changes: Any,
) -> None:
    """Steps of so many groups of one rollout, whose reward is the group's place in its step."""
    with TrajectoryWriter(run, keep=keep) as writer:
        for step in steps:
            for place in range(a_step):
                group = step * a_step + place
                writer.write(make(group, reward=float(place), stage="rl", **changes), step)
                writer.annotate(learned(f"{group}-0-0", step))
            writer.seal(step, "rl")


def groups(run: RunDirectory) -> list[int]:
    return sorted(one.group_index for one in TrajectoryReader(run).summaries())


def annotated(run: RunDirectory) -> list[int]:
    found = TrajectoryReader(run).annotations()
    return sorted(int(one.trajectory_id.split("-")[0]) for one in found)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({}, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        ({"last_steps": 2}, [8, 9, 10, 11, 12, 13, 14, 15]),
        ({"last_steps": 1, "every_steps": 2}, [8, 9, 10, 11, 12, 13, 14, 15]),
        ({"reward_below": 1.0, "reward_above": 2.0}, [4, 7, 8, 11, 12, 15]),
        ({"share": 0.0}, []),
    ],
)
def test_a_trajectory_stays_where_any_rule_fits_and_its_annotations_with_it(
    run: RunDirectory, make: Make, rules: dict[str, Any], kept: list[int]
) -> None:
    write_steps(run, make, range(1, 4), KeepSpec(**rules))
    assert groups(run) == kept
    assert annotated(run) == kept
    reader = TrajectoryReader(run)
    for stored in reader.get_many(f"{group}-0-0" for group in kept):
        assert stored.trajectory.turns[0].text == "done"
        assert [one.trajectory_id for one in stored.annotations] == [stored.summary.id]
    assert reader.damage == []
    assert not list(run.root.rglob("*.tmp"))


def test_what_a_later_step_learned_goes_when_that_step_is_old(
    run: RunDirectory, make: Make
) -> None:
    with TrajectoryWriter(run, keep=KeepSpec(last_steps=1)) as writer:
        for step in range(1, 4):
            writer.write(make(step, stage="rl"), step)
            writer.annotate(learned(f"{max(1, step - 1)}-0-0", step))
            writer.seal(step, "rl")
    assert groups(run) == [3]
    assert annotated(run) == [2]  # by step 3, which stays whole


def test_steps_are_counted_by_stage(run: RunDirectory, make: Make) -> None:
    keep = KeepSpec(last_steps=1)
    with TrajectoryWriter(run, keep=keep) as writer:
        for number, (stage, step) in enumerate((("a", 1), ("a", 2), ("b", 1), ("b", 2))):
            writer.write(make(number, stage=stage), step)
            writer.seal(step, stage)
    assert groups(run) == [1, 3]  # the last step of each
    # step 1 of one stage is not step 1 of the other
    assert TrajectoryReader(run).kept_by_stage() == {"a": {1: (0, 1)}, "b": {1: (0, 1)}}


def test_evaluations_stay_unless_labels_say_otherwise(
    run: RunDirectory, make: Make
) -> None:
    played = [
        {"purpose": "eval", "label": "code/after/greedy"},
        {"purpose": "eval", "label": "coder/after/greedy"},
        {"purpose": "baseline", "label": "code/before/greedy"},
        {},
    ]
    for labels, kept in (
        (("baseline", "eval"), [0, 1, 2]),
        (("code",), [0, 2]),
        (("code/after",), [0]),
        (("train",), [3]),
        ((), []),
    ):
        keep = KeepSpec(share=0.0, labels=labels)
        rows = [
            {"purpose": "train", "label": "", "stage": "", "group_index": n, "reward": None}
            | one
            for n, one in enumerate(played)
        ]
        assert [
            row["group_index"] for row in rows if fits(keep, {**row, "step": 3})
        ] == kept


def test_a_share_is_of_groups_and_the_same_in_every_process() -> None:
    keep = KeepSpec(share=0.1)
    rows = [
        {
            "purpose": "train",
            "label": "",
            "stage": "rl",
            "group_index": n,
            "reward": None,
            "step": 1,
        }
        for n in range(2000)
    ]
    kept = [row["group_index"] for row in rows if fits(keep, row)]
    assert 160 < len(kept) < 240
    assert kept[:5] == [9, 12, 13, 31, 37]
    more = [row["group_index"] for row in rows if fits(KeepSpec(share=0.2), row)]
    assert set(kept) < set(more)


def test_what_people_wrote_a_note_on_stays(run: RunDirectory, make: Make) -> None:
    book = NoteBook(run.notes_folder, "ada")
    book.add({"trajectory": "5-0-0", "text": "look at this"})
    deleted = book.add({"trajectory": "6-0-0", "labels": ["odd"]})
    NoteBook(run.notes_folder, "bob").add({"trajectory": "9-0-0", "labels": ["good"]})
    book.delete(deleted.id)
    write_steps(run, make, range(1, 4), KeepSpec(share=0.0))
    assert groups(run) == [5, 9]
    assert annotated(run) == [5, 9]


def test_a_note_that_is_written_while_a_shard_shrinks_counts(
    run: RunDirectory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = NoteBook(run.notes_folder, "ada")
    ask = NotedTrajectories.ids
    asked: list[int] = []

    def writes_meanwhile(noted: NotedTrajectories) -> frozenset[str]:
        asked.append(1)
        if len(asked) == 2:  # the look right before the shard is replaced
            book.add({"trajectory": "6-0-0", "text": "wait"})
        return ask(noted)

    monkeypatch.setattr(NotedTrajectories, "ids", writes_meanwhile)
    write_steps(run, make, range(1, 2), KeepSpec(share=0.0))
    assert groups(run) == [6]
    assert TrajectoryReader(run).kept_by_stage() == {"rl": {1: (1, 4)}}


def test_notes_that_cannot_be_read_keep_everything(
    run: RunDirectory, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (run.notes_folder / "ada.jsonl").mkdir(parents=True)
    write_steps(run, make, range(1, 3), KeepSpec(share=0.0))
    assert groups(run) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert "the notes of" in caplog.text
    assert "store.keep leaves" in caplog.text


def test_a_dropped_trajectory_is_named_as_dropped(run: RunDirectory, make: Make) -> None:
    reader = TrajectoryReader(run)
    assert reader.kept_by_stage() == {}
    write_steps(run, make, range(1, 4), KeepSpec(last_steps=1, reward_below=1.0))
    assert reader.kept_by_stage() == {"rl": {1: (1, 4), 2: (1, 4)}}
    with pytest.raises(NoTrajectoryError) as dropped:
        reader.get("5-0-0")
    assert str(dropped.value) == (
        f"{run.root} has no trajectory '5-0-0' any more: it was dropped by store.keep, which left "
        "1 of 4 trajectories of traj/sealed/step=000001/driver-0001.parquet"
    )
    with pytest.raises(NoTrajectoryError, match="'99-0-0'; `agentrl ls` lists its own"):
        reader.get("99-0-0")


def test_a_reader_that_has_listed_a_shard_finds_what_stayed_in_it(
    run: RunDirectory, make: Make
) -> None:
    write_steps(run, make, range(1, 3), KeepSpec())
    reader = TrajectoryReader(run)
    assert reader.get("7-0-0").annotation.step == 1
    write_steps(run, make, range(3, 4), KeepSpec(reward_above=2.0))
    # its row and its annotation's are others now
    assert reader.get("7-0-0").trajectory.group_index == 7
    assert [one.trajectory_id for one in reader.get("7-0-0").annotations] == ["7-0-0"]
    assert [one.trajectory_id for one in reader.learned("7-0-0")] == ["7-0-0"]
    assert [one.group_index for one in reader.summaries()] == [7, 11, 15]
    assert reader.damage == []


def test_annotations_are_found_by_a_reader_that_looked_before_they_moved(
    run: RunDirectory, make: Make
) -> None:
    write_steps(run, make, range(1, 3), KeepSpec())
    reader = TrajectoryReader(run)
    assert reader.learned("7-0-0")
    write_steps(run, make, range(3, 4), KeepSpec(reward_above=2.0))
    assert [one.trajectory_id for one in reader.learned("7-0-0")] == ["7-0-0"]
    assert reader.learned("6-0-0") == ()


def test_a_shard_that_shrinks_keeps_its_columns_and_large_row_groups(
    run: RunDirectory, make: Make
) -> None:
    write_steps(run, make, range(1, 2), KeepSpec(), a_step=100)
    path = run.shard_path(1, "driver", 1)
    before = pq.ParquetFile(path)
    rows = {row["id"]: (row, arrays) for row, arrays in read_shard(path)}
    write_steps(
        run, make, range(2, 3), KeepSpec(last_steps=1, reward_above=74.0), a_step=100
    )
    after = pq.ParquetFile(path)
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    sizes = [after.metadata.row_group(n).num_rows for n in range(after.num_row_groups)]
    assert sizes == [25]  # of two groups, 21 and 4
    for row, arrays in read_shard(path):
        assert row == rows[row["id"]][0]
        assert arrays.pack() == rows[row["id"]][1].pack()


def test_a_damaged_shard_stays_as_it_is(
    run: RunDirectory, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    write_steps(run, make, range(1, 3), KeepSpec())
    first, second = (run.shard_path(step, "driver", 1) for step in (1, 2))
    torn = first.read_bytes()[:-100]
    first.write_bytes(torn)
    whole = second.read_bytes()
    garbled = whole[:200] + bytes(len(whole) // 3) + whole[200 + len(whole) // 3 :]
    second.write_bytes(garbled)  # its footer still reads
    write_steps(run, make, range(3, 4), KeepSpec(last_steps=1, reward_below=1.0))
    assert first.read_bytes() == torn
    assert second.read_bytes() == garbled
    assert caplog.text.count("store.keep leaves") == 2


def test_of_several_records_of_an_id_the_newest_decides(
    run: RunDirectory, make: Make
) -> None:
    # a resumed run played step 2 again: 0 came earlier, 1 and 2 got other rewards
    keep = KeepSpec(reward_above=0.5)
    with TrajectoryWriter(run) as writer:
        writer.write(make(0, stage="rl", reward=1.0), 3)
        writer.write(make(1, stage="rl", reward=1.0), 2)
        writer.write(make(2, stage="rl", reward=0.0), 2)
    with TrajectoryWriter(run, keep=keep) as writer:
        writer.write(make(0, stage="rl", reward=0.0), 2)
        writer.seal(2, "rl")
        writer.write(make(1, stage="rl", reward=0.0), 3)
        writer.write(make(2, stage="rl", reward=1.0), 3)
        writer.seal(3, "rl")
    found = {one.group_index: one.reward for one in TrajectoryReader(run).summaries()}
    # an older record never shows again: 0 is gone with both, and 1 stays with both
    assert found == {1: 0.0, 2: 1.0}


def test_a_resumed_run_drops_what_its_rules_of_today_say(
    run: RunDirectory, make: Make
) -> None:
    write_steps(run, make, range(1, 4), KeepSpec(last_steps=1, reward_above=1.0))
    assert groups(run) == [6, 7, 10, 11, 12, 13, 14, 15]
    write_steps(run, make, range(4, 5), KeepSpec(last_steps=1, reward_above=2.0))
    assert groups(run) == [7, 11, 15, 16, 17, 18, 19]
    assert TrajectoryReader(run).kept_by_stage() == {
        "rl": {1: (1, 4), 2: (1, 4), 3: (1, 4)}
    }


def test_files_of_other_writers_stay(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run, "driver-2") as other:
        other.write(make(99, stage="rl"), 1)
    write_steps(run, make, range(1, 3), KeepSpec(share=0.0))
    assert groups(run) == [99]


def test_a_drop_that_a_death_left_undone_is_done_by_the_next_writer(
    run: RunDirectory, make: Make
) -> None:
    keep = KeepSpec(last_steps=1, reward_below=1.0)
    write_steps(run, make, range(1, 2), keep)
    whole = run.shard_path(1, "driver", 1).read_bytes()
    write_steps(run, make, range(2, 3), keep)
    # as if only the line had come to disk
    run.shard_path(1, "driver", 1).write_bytes(whole)
    assert groups(run)[:4] == [4, 5, 6, 7]
    assert TrajectoryReader(run).get("5-0-0").trajectory.group_index == 5
    write_steps(run, make, range(3, 4), keep)
    assert groups(run) == [4, 8, 12, 13, 14, 15]
    assert TrajectoryReader(run).kept_by_stage() == {"rl": {1: (1, 4), 2: (1, 4)}}


def test_a_damaged_line_of_the_log_is_named_and_hides_no_other(
    run: RunDirectory, make: Make
) -> None:
    write_steps(run, make, range(1, 4), KeepSpec(last_steps=1, reward_below=1.0))
    (log,) = run.dropped_folder.glob("*.jsonl")
    first, second = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first[:30] + b"\n" + second)
    reader = TrajectoryReader(run)
    assert reader.kept_by_stage() == {"rl": {2: (1, 4)}}
    assert [str(log) in told for told in reader.damage] == [True]
    with pytest.raises(StoreError, match=r"driver\.jsonl:1 must be a JSON object"):
        TrajectoryWriter(run, keep=KeepSpec(last_steps=1))


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"share": 1.5}, "KeepSpec.share must be at most 1, got 1.5"),
        ({"last_steps": -1}, "KeepSpec.last_steps must be at least 0, got -1"),
        ({"every_steps": 0}, "KeepSpec.every_steps must be at least 1, got 0"),
        (
            {"reward_below": 1.0, "reward_above": 0.5},
            "KeepSpec.reward_below must be at most reward_above, else every reward stays, got 1 "
            "and 0.5; lower it",
        ),
        (
            {"labels": ["eval"]},
            "KeepSpec.labels alone drops nothing: without another rule all trajectories stay, got "
            "['eval']; set share: 0.0 beside it to keep these alone",
        ),
        (
            {"share": 0.0, "labels": [""]},
            "KeepSpec.labels must be purposes or evaluation labels, got an empty one; remove it",
        ),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KeepSpec(**rules)
    assert str(refused.value) == told


def test_the_log_names_what_it_dropped(run: RunDirectory, make: Make) -> None:
    write_steps(run, make, range(1, 2), KeepSpec(reward_above=2.0))
    (log,) = run.dropped_folder.glob("*.jsonl")
    record = json.loads(log.read_text(encoding="utf-8"))
    assert isinstance(record.pop("newest"), float)
    assert record == {
        "shard": "traj/sealed/step=000001/driver-0001.parquet",
        "stage": "rl",
        "step": 1,
        "of": 4,
        "kept": 1,
        "dropped": ["4-0-0", "5-0-0", "6-0-0"],
    }
    assert Path(run.root, record["shard"]).is_file()
