"""Writers that are killed at any moment, and disks that are full or refuse: what is left opens."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Segment, SegmentKind, Status, Task, Trajectory, Turn
from tests.store.killing import DEADLINE_S, killed_writing

_A_STEP = 5


def numbered(number: int) -> Trajectory:
    """A trajectory whose tokens tell its number."""
    policy = Segment(SegmentKind.POLICY, np.full(50, number), np.full(50, -0.5), 0)
    turn = Turn(0, None, (), (policy,), "x" * 300, {"role": "assistant", "content": "x"})
    return Trajectory(
        Task("t"), number, 0, 0, "train", (turn,), Status("terminated"), reward=1.0
    )


def write_on(root: Path, first: int, told: Connection) -> None:
    """Writes and seals until it is killed, and tells how many are durable after each flush."""
    number = first
    with TrajectoryWriter(RunDirectory.open(root)) as writer:
        while True:
            step = number // _A_STEP
            for _ in range(_A_STEP):
                writer.write(numbered(number), step)
                number += 1
            if step % 2:
                writer.seal(step)
                writer.seal(step - 1)
            writer.flush()
            told.send(number)


# 200, with annotations and the viewer, are ``python -m benchmarks.viewer --only kills``
@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(
    run: RunDirectory, kills: int
) -> None:
    chance = random.Random(11)
    reader = TrajectoryReader(run)  # one that follows all of it
    durable = 0
    for _ in range(kills):
        durable = killed_writing(
            write_on,
            run.root,
            len(reader.summaries()),
            durable,
            chance=chance,
            waits=(0, 3),
            most_s=0.02,
        )
        for looking in (reader, TrajectoryReader(run)):
            found = looking.summaries()
            # nothing is missing in between, so all that a kill costs is at the end
            assert [one.group_index for one in found] == list(range(len(found)))
            assert len(found) >= durable
            assert looking.damage == []
        last = found[-8:]
        for stored in reader.get_many([one.id for one in last]):
            trajectory = stored.trajectory
            assert set(trajectory.sequence(0).tolist()) == {trajectory.group_index}
    assert durable > kills
    before = [one.id for one in reader.summaries()]
    with TrajectoryWriter(run):
        pass
    assert [one.id for one in reader.summaries()] == before
    left = [
        path.name
        for path in run.root.rglob("*")
        if path.suffix in (".tmp", ".jsonl", ".zst")
    ]
    assert left == []


def in_namespace(options: list[str], script: str, *arguments: str) -> list[str]:
    """The lines that a script prints under bubblewrap."""
    command = ["bwrap", "--dev-bind", "/", "/", *options, sys.executable, "-c"]
    done = subprocess.run(
        [*command, textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if "bwrap: " in done.stderr:
        pytest.skip(f"bubblewrap makes no namespace here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FILL = """
    import sys
    from agentrl.errors import DiskFullError
    from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
    from tests.store.test_killed_writer import numbered
    run = RunDirectory.create(sys.argv[1])
    writer = TrajectoryWriter(run)
    flushed = 0
    try:
        for number in range(100_000):
            writer.write(numbered(number), number // 100)
            if number % 100 == 99:
                writer.seal(number // 100)
                writer.flush()
                flushed = number + 1
    except DiskFullError as error:
        print(error)
    reader = TrajectoryReader(run)
    found = reader.summaries()
    print(flushed >= 100, [one.group_index for one in found] == list(range(len(found))))
    whole = list(reader.get_many([one.id for one in found]))
    print(len(found) >= flushed, len(whole) == len(found))
    print(reader.damage, [path.name for path in run.root.rglob("*.tmp")])
"""


@pytest.mark.slow
def test_a_full_disk_is_named_and_what_was_written_opens(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    told, *rest = in_namespace(
        ["--size", "400000", "--tmpfs", str(disk)], FILL, f"{disk}/run"
    )
    assert f"the disk is full (0.0 of 0.4 MB are free at {disk}/run" in told
    assert "then --resume" in told
    assert rest == ["True True", "True True", "[] []"]


SHRINK = """
    import os, sys
    from pathlib import Path
    from agentrl.errors import DiskFullError
    from agentrl.store import KeepSpec, RunDirectory, TrajectoryReader, TrajectoryWriter
    from tests.store.test_killed_writer import numbered
    run = RunDirectory.create(sys.argv[1])
    with TrajectoryWriter(run) as writer:
        for number in range(100):
            writer.write(numbered(number), 1)
    shard = run.shard_path(1, "driver", 1)
    whole = shard.read_bytes()
    filler = Path(sys.argv[1]) / "filler"
    space = os.statvfs(sys.argv[1])
    filler.write_bytes(bytes(space.f_bavail * space.f_frsize - 8192))
    keep = KeepSpec(share=0.9)
    writer = TrajectoryWriter(run, keep=keep)
    try:
        writer.seal(1)
        writer.flush()
    except DiskFullError as error:
        print(error)
    print(shard.read_bytes() == whole, list(run.root.rglob("*.parquet.*")))
    filler.unlink()
    with TrajectoryWriter(run, keep=keep) as writer:
        writer.seal(1)
    reader = TrajectoryReader(run)
    ((left,),) = (own.values() for own in reader.kept_by_stage().values())
    print(80 < left[0] < 97, left == (len(reader.summaries()), 100), reader.damage)
"""


def test_a_disk_that_is_full_while_old_trajectories_are_dropped_loses_none(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    told, *rest = in_namespace(
        ["--size", "400000", "--tmpfs", str(disk)], SHRINK, f"{disk}/run"
    )
    assert f"the disk is full (0.0 of 0.4 MB are free at {disk}/run" in told
    assert rest == ["True []", "True True []"]


LOOK = """
    import sys
    from agentrl.errors import StoreError
    from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
    run = RunDirectory.open(sys.argv[1])
    reader = TrajectoryReader(run)
    print([one.id for one in reader.summaries()], reader.get("0-0-0").trajectory.group_index)
    try:
        TrajectoryWriter(run)
    except StoreError as error:
        print(error)
"""


def test_a_run_on_a_read_only_disk_is_read_and_not_written(run: RunDirectory) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(numbered(0), 0)
    there = str(run.root)
    assert in_namespace(["--ro-bind", there, there], LOOK, there) == [
        "['0-0-0'] 0",
        f"{run.live_folder}/driver.lock cannot be made: Read-only file system",
    ]
