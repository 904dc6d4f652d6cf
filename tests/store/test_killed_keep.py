"""A writer that is killed while it drops old trajectories: what must stay is there and whole, and
what is gone was written down."""

from __future__ import annotations

import random
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from agentrl.store import (
    Annotation,
    KeepSpec,
    NoTrajectoryError,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
)
from agentrl.store.retention import fits
from tests.store.killing import killed_writing
from tests.store.test_killed_writer import numbered

A_STEP = 5
KEEP = KeepSpec(last_steps=2, share=0.4)


def write_step(writer: TrajectoryWriter, step: int) -> None:
    for number in range(step * A_STEP, (step + 1) * A_STEP):
        writer.write(numbered(number), step)
        ratio = np.full(50, number, np.float32)
        writer.annotate(Annotation(f"{number}-0-0", step, arrays={"ratio": ratio}))
    writer.seal(step)


def write_on(root: Path, first: int, told: Connection) -> None:
    """Writes, seals and drops until it is killed; tells each step that is durable."""
    step = first
    with TrajectoryWriter(RunDirectory.open(root), keep=KEEP) as writer:
        while True:
            write_step(writer, step)
            writer.flush()
            told.send(step)
            step += 1


def stays(number: int, newest: int) -> bool:
    """Whether a trajectory must be there once step ``newest`` has ended."""
    step = number // A_STEP
    row = {"step": step, "reward": 1.0, "label": "", "purpose": "train", "stage": ""}
    return step > newest - 2 or fits(KEEP, {**row, "group_index": number})


def check(run: RunDirectory, reader: TrajectoryReader, newest: int) -> None:
    found = {one.group_index for one in reader.summaries()}
    written = range((newest + 1) * A_STEP)
    # the writer may have ended another step before it could tell
    assert {number for number in written if stays(number, newest + 1)} <= found
    for number in sorted(set(written) - found)[-3:]:
        with pytest.raises(NoTrajectoryError, match=r"dropped by store\.keep"):
            reader.get(f"{number}-0-0")
    here = sorted(number for number in found if number < (newest + 1) * A_STEP)
    for stored in reader.get_many(f"{number}-0-0" for number in here[-8:]):
        assert set(stored.trajectory.sequence(0).tolist()) == {stored.summary.group_index}
    known = {one.trajectory_id: one for one in reader.annotations()}
    assert {f"{number}-0-0" for number in here} <= known.keys()
    for trajectory_id, one in known.items():
        assert (one.arrays["ratio"] == np.float32(trajectory_id.split("-")[0])).all()
    assert reader.damage == []


@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_drops_nothing_that_must_stay(
    run: RunDirectory, kills: int
) -> None:
    chance = random.Random(5)
    reader = TrajectoryReader(run)  # one that follows all of it
    newest = -1
    for _ in range(kills):
        newest = killed_writing(
            write_on, run.root, newest + 1, newest, chance=chance, waits=(1, 4), most_s=0.03
        )
        for looking in (reader, TrajectoryReader(run)):
            check(run, looking, newest)
    with TrajectoryWriter(run, keep=KEEP) as writer:
        write_step(writer, newest + 1)
    for looking in (reader, TrajectoryReader(run)):
        check(run, looking, newest + 1)
        found = {one.group_index for one in looking.summaries()}
        assert found == {n for n in range((newest + 2) * A_STEP) if stays(n, newest + 1)}
        learned = {one.trajectory_id for one in looking.annotations()}
        assert learned == {f"{number}-0-0" for number in found}
    assert not list(run.root.rglob("*.tmp"))
