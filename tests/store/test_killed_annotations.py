"""A writer that is killed at any moment loses nothing that was flushed, and the run opens, in the
viewer too.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.viewer.app import create_app
from tests.store.killed_writer import A_STEP

REPOSITORY = Path(__file__).parents[2]
KILLS = 20


@contextmanager
def writers(run: RunDirectory) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.store.killed_writer", str(run.root)]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def kill_once(process: subprocess.Popen[str], first: int, steps: int, after_s: float) -> int:
    """Lets a writer write from step ``first`` on, and kills it some time after it flushed so many
    steps; the last step that it flushed."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(first, file=process.stdin, flush=True)
    told = process.stdout.readline().split()
    assert told[0] == "pid"
    for _ in range(steps):
        process.stdout.readline()
    time.sleep(after_s)  # the moment is what is drawn
    os.kill(int(told[1]), signal.SIGKILL)
    flushed = first + steps - 1
    while (line := process.stdout.readline()) != "dead\n":
        flushed = int(line)
    return flushed


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))]
)
def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(
    run: RunDirectory, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # one index sees all of it
    draw = random.Random(seed)
    first = 0
    steps_flushed: set[int] = set()
    with writers(run) as process:
        for _ in range(KILLS):
            last = kill_once(process, first, draw.randint(0, 2), draw.uniform(0, 0.05))
            steps_flushed |= set(range(first, last + 1))
            first = last + 2  # what may have reached the files of the next one stays as it is
            check(run, steps_flushed)
    with TrajectoryWriter(run):  # seals what the last one left
        check(run, steps_flushed)
    assert not list(run.root.glob("traj/live/*/*.jsonl"))
    assert not list(run.root.glob("traj/ann/live/*/*.jsonl"))
    check(run, steps_flushed)
    assert len(steps_flushed) > KILLS / 2


def check(run: RunDirectory, steps: set[int]) -> None:
    """Everything of these steps is there, whole, and no file counts as damaged."""
    reader = TrajectoryReader(run)
    ids = [one.id for one in reader.summaries()]
    assert len(set(ids)) == len(ids)
    groups = {step: range(step * A_STEP, (step + 1) * A_STEP) for step in steps}
    assert {f"{group}-0-0" for own in groups.values() for group in own} <= set(ids)
    for step in sorted(steps)[-3:]:
        for stored in reader.get_many([f"{group}-0-0" for group in groups[step]]):
            assert stored.trajectory.policy_segments()[0].token_ids.size == 50
    annotations = list(reader.annotations())
    known = {one.trajectory_id for one in annotations}
    assert len(known) == len(annotations)
    assert {f"{group}-0-0" for own in groups.values() for group in own[:-1]} <= known
    for one in annotations:
        assert (one.arrays["ratio"] == np.float32(one.trajectory_id.split("-")[0])).all()
    assert reader.damage == []
    assert viewed(run) == sorted(ids)


def viewed(run: RunDirectory) -> list[str]:
    """The trajectories that a viewer lists which opens the run now, and shows the last of."""
    app = create_app(run.root, token="t", allow_hosts=("testserver",))
    with TestClient(app, headers={"Authorization": "Bearer t"}) as client:
        [row] = client.get("/api/runs").json()["runs"]
        address = f"/api/runs/{row['key']}"
        rows = client.get(f"{address}/trajectories?sort=step&limit=500").json()["rows"]
        assert client.get(f"{address}/overview").status_code == 200
        assert client.get(address).json()["damage"] == []
        if rows:
            tokens = client.get(f"{address}/tokens?id={rows[-1]['id']}")
            assert tokens.status_code == 200, tokens.text
    return sorted(row["id"] for row in rows)
