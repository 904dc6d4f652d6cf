"""A reader that follows a run: what was appended, replaced, cut, sealed or removed meanwhile."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agentrl.errors import StoreError
from agentrl.store import (
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    encode_trajectory,
    jsonl,
    shard_folders,
    write_shard,
)
from agentrl.store.jsonl import JsonFollower
from agentrl.store.shard_folders import ShardFolders
from agentrl.types import Trajectory

Make = Callable[..., Trajectory]


@pytest.fixture
def writer(run: RunDirectory) -> Iterator[TrajectoryWriter]:
    with TrajectoryWriter(run) as opened:
        yield opened


def live_file(run: RunDirectory) -> Path:
    (path,) = run.live_folder.glob("step=*/*.jsonl")
    return path


def ids(reader: TrajectoryReader) -> list[str]:
    return [one.id for one in reader.summaries()]


def test_a_look_parses_only_what_was_appended(
    run: RunDirectory, make: Make, writer: TrajectoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse_line = jsonl.parse_line

    def counted(place: str, line: bytes) -> dict[str, Any]:
        parsed.append(line)
        return parse_line(place, line)

    monkeypatch.setattr(jsonl, "parse_line", counted)
    reader = TrajectoryReader(run)
    for group_index in range(3):
        writer.write(make(group_index), 0)
    writer.flush()
    assert len(reader.summaries()) == 3
    writer.write(make(3), 0)
    writer.flush()
    assert len(reader.summaries()) == len(reader.summaries()) == 4
    assert len(set(parsed)) == len(parsed) == 4


def test_a_partial_line_is_there_once_it_is_whole(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    writer.write(make(0), 0)
    writer.write(make(1), 0)
    writer.flush()
    path = live_file(run)
    whole = path.read_bytes()
    cut = whole.index(b"\n") + 40
    path.write_bytes(whole[:cut])
    reader = TrajectoryReader(run)
    assert ids(reader) == ["0-0-0"]
    with path.open("ab") as file:
        file.write(whole[cut:])
    assert ids(reader) == ["0-0-0", "1-0-0"]
    assert reader.damage == []


def test_a_line_without_its_frame_waits_for_it(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    writer.write(make(0), 0)
    writer.write(make(1), 0)
    writer.flush()
    frames = live_file(run).with_suffix(".zst")
    whole = frames.read_bytes()
    frames.write_bytes(whole[:-1])
    reader = TrajectoryReader(run)
    assert ids(reader) == ["0-0-0"]
    frames.write_bytes(whole)
    assert ids(reader) == ["0-0-0", "1-0-0"]


def test_a_live_file_that_was_cut_loses_its_end(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    for group_index in range(3):
        writer.write(make(group_index), 0)
    writer.flush()
    path = live_file(run)
    whole = path.read_bytes()
    reader = TrajectoryReader(run)
    assert len(ids(reader)) == 3
    path.write_bytes(whole[: whole.index(b"\n") + 1])
    assert ids(reader) == ["0-0-0"]
    path.write_bytes(whole)  # the writer seals it when it closes
    assert len(ids(reader)) == 3


@pytest.mark.parametrize("in_place", [False, True])
def test_a_live_file_that_was_replaced_is_read_anew(
    run: RunDirectory, make: Make, writer: TrajectoryWriter, in_place: bool
) -> None:
    writer.write(make(0, text="one"), 0)
    writer.flush()
    path = live_file(run)
    before = path.read_bytes()
    reader = TrajectoryReader(run)
    assert reader.get("0-0-0").trajectory.turns[0].text == "one"
    after = before.replace(b"0-0-0", b"5-0-0").replace(
        b'"group_index":0', b'"group_index":5'
    )
    assert len(after) == len(before)
    if in_place:
        path.write_bytes(after)
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    else:
        path.with_suffix(".new").write_bytes(after)
        os.replace(path.with_suffix(".new"), path)
    assert ids(reader) == ["5-0-0"]
    assert reader.get("5-0-0").trajectory.group_index == 5


def test_a_live_file_that_is_sealed_moves_its_trajectories(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    for group_index in range(3):
        writer.write(make(group_index), 4)
    writer.flush()
    reader = TrajectoryReader(run)
    assert ids(reader) == ["0-0-0", "1-0-0", "2-0-0"]
    writer.seal(4)
    writer.flush()
    assert ids(reader) == ["0-0-0", "1-0-0", "2-0-0"]
    assert reader.get("2-0-0").trajectory.group_index == 2


def test_an_episode_that_is_played_again_replaces_its_record(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    reader = TrajectoryReader(run)
    assert reader.summaries() == []
    writer.write(make(0), 0)
    writer.seal(0)
    writer.write(make(1), 1)
    writer.flush()
    assert [(one.id, one.step) for one in reader.summaries()] == [
        ("0-0-0", 0),
        ("1-0-0", 1),
    ]
    writer.write(make(0, text="played again"), 1)  # as a run that went back does
    writer.flush()
    assert [(one.id, one.step) for one in reader.summaries()] == [
        ("0-0-0", 1),
        ("1-0-0", 1),
    ]


def test_a_look_that_failed_halfway_loses_nothing(
    run: RunDirectory, make: Make, writer: TrajectoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ShardFolders) -> None:
        raise PermissionError(13, "Permission denied")

    writer.write(make(0), 0)
    writer.flush()
    reader = TrajectoryReader(run)
    with monkeypatch.context() as patched:
        patched.setattr(ShardFolders, "look", refuse)
        with pytest.raises(StoreError, match="cannot be read: Permission denied"):
            reader.summaries()
    assert ids(reader) == ["0-0-0"]


def test_a_shard_that_is_removed_takes_its_trajectories_along(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    writer.write(make(0, text="old"), 0)
    writer.seal(0)
    writer.write(make(0, text="new"), 1)
    writer.write(make(1), 1)
    writer.seal(1)
    writer.flush()
    reader = TrajectoryReader(run)
    assert reader.get("0-0-0").trajectory.turns[0].text == "new"
    run.shard_path(1, "driver", 1).unlink()
    assert reader.get("0-0-0").trajectory.turns[0].text == "old"
    assert [one.step for one in reader.summaries()] == [0]  # its record is another one now
    with pytest.raises(StoreError, match="no trajectory '1-0-0'"):
        reader.get("1-0-0")


def test_a_shard_that_is_replaced_is_listed_again(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    for group_index in range(3):
        writer.write(make(group_index), 0)
    writer.seal(0)
    writer.flush()
    reader = TrajectoryReader(run)
    assert len(ids(reader)) == 3
    kept = [encode_trajectory(make(2), step=0, recorded_at=time.time())]
    write_shard(run.shard_path(0, "driver", 1), kept)
    assert ids(reader) == ["2-0-0"]
    assert reader.get("2-0-0").trajectory.group_index == 2


def test_a_run_that_was_moved_is_named_and_found_again(
    run: RunDirectory, make: Make, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    reader = TrajectoryReader(run)
    assert ids(reader) == ["0-0-0"]
    run.root.rename(tmp_path / "elsewhere")
    for ask in (reader.summaries, lambda: reader.get("0-0-0")):
        with pytest.raises(StoreError, match=r"run is not there any more; was it moved\?"):
            ask()
    (tmp_path / "elsewhere").rename(run.root)
    assert reader.get("0-0-0").trajectory.group_index == 0


def test_a_folder_that_did_not_change_is_not_looked_into(
    run: RunDirectory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in range(3):
            writer.write(make(step), step)
            writer.seal(step)
    monkeypatch.setattr(shard_folders, "_SETTLED_S", 0.0)
    folders = ShardFolders(run.sealed_folder)
    assert len(folders.look()[0]) == 3
    looked: list[str] = []
    scandir = os.scandir

    def counted(path: Path) -> Any:
        looked.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert folders.look() == ([], [])
    assert looked == []
    rows = [encode_trajectory(make(9), step=1, recorded_at=0.0)]
    write_shard(run.shard_path(1, "driver", 2), rows)
    assert folders.look(newest=1) == ([], [])
    assert folders.look() == ([run.shard_path(1, "driver", 2)], [])
    assert looked == ["step=000001"]


def test_a_clock_that_goes_back_hides_no_newer_record(
    run: RunDirectory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0, text="before"), 5)
    monkeypatch.setattr(time, "time", lambda: 1000.0)  # the machine lost its clock
    with TrajectoryWriter(run) as writer:
        writer.write(make(0, text="after"), 5)
        writer.write(make(0, text="last"), 5)
    reader = TrajectoryReader(run)
    assert reader.get("0-0-0").trajectory.turns[0].text == "last"
    assert reader.get("0-0-0").summary.recorded_at > 1000.0


def test_summaries_are_small_in_memory(run: RunDirectory, make: Make) -> None:
    row, arrays = encode_trajectory(make(0), step=0, recorded_at=0.0)
    shards = 5
    for step in range(shards):
        rows = [
            (
                {**row, "id": f"{step}-{n}-0", "group_index": step, "rollout_index": n},
                arrays,
            )
            for n in range(1000)
        ]
        write_shard(run.shard_path(step, "driver", 1), rows)
    reader = TrajectoryReader(run)
    in_arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        reader.get("0-0-0")
        in_python, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    each = (in_python + pa.total_allocated_bytes() - in_arrow) / (1000 * shards)
    assert each < 800  # bytes; it was 2,500


def test_a_line_follower_starts_over_when_the_file_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = JsonFollower(path)
    assert follower.is_same()
    assert list(follower.lines()) == []
    path.write_bytes(b"one\ntwo\nthr")
    assert follower.is_same()
    assert list(follower.lines()) == [(0, b"one"), (4, b"two")]
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert follower.is_same()
    assert list(follower.lines()) == [(8, b"three")]
    path.write_bytes(b"one\ntwo\nThree\nfour\n")  # longer, and another last line
    assert not follower.is_same()
    assert [line for _, line in follower.lines()] == [b"one", b"two", b"Three", b"four"]
    path.unlink()
    assert not follower.is_same()
    assert list(follower.lines()) == []


def test_a_line_counts_as_read_once_the_next_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\n")
    follower = JsonFollower(path)
    follower.is_same()
    for _, line in follower.lines():
        if line == b"two":
            break
    assert follower.is_same()
    assert list(follower.lines()) == [(4, b"two")]


def test_a_line_longer_than_a_block_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    long = b"x" * (9 << 20)
    path.write_bytes(b"a\n" + long + b"\nb\n")
    follower = JsonFollower(path)
    follower.is_same()
    assert [len(line) for _, line in follower.lines()] == [1, len(long), 1]


def test_two_stages_that_play_one_set_hide_nothing(
    run: RunDirectory, make: Make, writer: TrajectoryWriter
) -> None:
    label = "sums/before/greedy"
    for stage in ("warmup", "rl"):
        writer.write(make(0, stage=stage, label=label, purpose="eval"), 0)
        writer.write(replace(make(len(stage)), stage=stage), 0)
    writer.flush()
    assert ids(TrajectoryReader(run)) == [
        "2-0-0",
        f"rl/{label}/0-0-0",
        "6-0-0",
        f"warmup/{label}/0-0-0",
    ]
