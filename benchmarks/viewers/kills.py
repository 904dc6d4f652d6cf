"""Kills: ends a writer at random moments, and counts what its run lacks, in the viewer too."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.viewer.app import create_app
from benchmarks.figures import ROOT, Figures
from tests.store.killed_writer import A_STEP, TOKENS

__all__ = ["Findings", "kill_often", "look", "measure"]

KILLS = 200
KILLS_A_RUN = 20
DEADLINE_S = 60.0
NOTE = (
    f"Kills: a process writes, annotates and seals {A_STEP} trajectories a step, without a pause, "
    f"and is ended by SIGKILL at a random moment, {KILLS_A_RUN} times a run. After each kill a "
    "reader and a viewer open the run. What the writer had flushed must be there, whole and once."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of 200 kills."""
    found = Findings()
    with tempfile.TemporaryDirectory() as folder, _cache(f"{folder}/cache"):
        for number in range(KILLS // KILLS_A_RUN):
            run = RunDirectory.create(Path(folder, str(number)), {"seed": arguments.seed})
            seed = arguments.seed + number
            found.add(kill_often(run, kills=KILLS_A_RUN, seed=seed))
    figures.at_least("kills of the writer", found.kills, "", KILLS)
    figures.report("trajectories that it had flushed", found.flushed, "")
    figures.at_most("flushed trajectories lost or changed", found.lost, "", 0)
    figures.at_most("flushed annotations lost or changed", found.annotations_lost, "", 0)
    figures.at_most("ids or annotations that came twice", found.twice, "", 0)
    figures.at_most("kills after which a part of the run was damaged", found.damaged, "", 0)
    figures.at_most(
        "kills after which the viewer lacked a trajectory", found.not_viewed, "", 0
    )
    figures.at_most("files left unsealed by the last writer", found.left, "", 0)
    figures.note(NOTE)


@dataclass
class Findings:
    """What was found after kills; all but the first two are 0 where nothing is wrong."""

    kills: int = 0
    flushed: int = 0
    lost: int = 0
    annotations_lost: int = 0
    twice: int = 0
    damaged: int = 0
    not_viewed: int = 0
    left: int = 0

    def add(self, other: Findings) -> None:
        """Adds what was found elsewhere."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def faults(self) -> dict[str, int]:
        """What is wrong, by name."""
        here = {name: value for name, value in vars(self).items() if value}
        return {
            name: value for name, value in here.items() if name not in ("kills", "flushed")
        }


def kill_often(run: RunDirectory, *, kills: int, seed: int) -> Findings:
    """Kills a writer of a run so often, and looks at the run after each kill.

    Args:
        run: an empty run.
        kills: their number.
        seed: chooses the moments: any, also of starting, sealing, and between two shards.

    Raises:
        RuntimeError: a writer ended by itself, or told nothing for a minute.
    """
    draw = random.Random(seed)
    found = Findings(kills=kills)
    first = 0
    flushed: set[int] = set()
    with _writers(run) as process:
        for _ in range(kills):
            last = _kill_once(process, first, draw.randint(0, 2), draw.uniform(0, 0.05))
            flushed |= set(range(first, last + 1))
            # what may have reached the files of the next one stays as it is
            first = last + 2
            look(run, flushed, found)
    with TrajectoryWriter(run):  # seals what the last one left
        look(run, flushed, found)
    look(run, flushed, found)
    found.flushed = len(flushed) * A_STEP
    live = (
        *run.root.glob("traj/live/*/*.jsonl"),
        *run.root.glob("traj/ann/live/*/*.jsonl"),
    )
    found.left = len(live)
    return found


@contextmanager
def _cache(folder: str) -> Iterator[None]:
    """The viewer's index lies there, as the user's cache."""
    name = "XDG_CACHE_HOME"
    before = os.environ.get(name)
    os.environ[name] = folder
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _writers(run: RunDirectory) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.store.killed_writer", str(run.root)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        if status := process.wait(DEADLINE_S):
            raise RuntimeError(f"the process that starts writers ended with {status}")
    finally:
        process.kill()
        process.wait()


def _kill_once(
    process: subprocess.Popen[str], first: int, steps: int, after_s: float
) -> int:
    """Lets a writer write from step ``first`` on, and kills it some time after it flushed so many
    steps; the last step that it flushed.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    print(first, file=process.stdin, flush=True)
    told = process.stdout.readline().split()
    if not told or told[0] != "pid":
        raise RuntimeError(f"a writer must tell its process, got {told}")
    for _ in range(steps):
        process.stdout.readline()
    time.sleep(after_s)  # the moment is what is drawn
    os.kill(int(told[1]), signal.SIGKILL)
    flushed = first + steps - 1
    while (line := process.stdout.readline()) != "dead\n":
        flushed = int(line)
    return flushed


def look(run: RunDirectory, steps: set[int], found: Findings) -> None:
    """Counts what of these steps is not there or not whole, and whether all of it is shown."""
    reader = TrajectoryReader(run)
    ids = [one.id for one in reader.summaries()]
    groups = {step: range(step * A_STEP, (step + 1) * A_STEP) for step in steps}
    flushed = {f"{group}-0-0" for own in groups.values() for group in own}
    latest = {f"{group}-0-0" for step in sorted(steps)[-3:] for group in groups[step]}
    found.twice += len(ids) - len(set(ids))
    found.lost += len(flushed - set(ids))
    for stored in reader.get_many(sorted(latest & set(ids))):
        tokens = stored.trajectory.policy_segments()[0].token_ids.tolist()
        found.lost += tokens != [stored.summary.group_index] * TOKENS
    annotations = list(reader.annotations())
    known = {one.trajectory_id for one in annotations}
    found.twice += len(annotations) - len(known)
    written = {f"{group}-0-0" for own in groups.values() for group in own[:-1]}
    found.annotations_lost += len(written - known)
    for one in annotations:
        own = np.full(TOKENS, one.trajectory_id.split("-")[0], np.float32)
        found.annotations_lost += not np.array_equal(one.arrays["ratio"], own)
    found.damaged += bool(reader.damage)
    found.not_viewed += _viewed(run) != sorted(ids)


def _viewed(run: RunDirectory) -> list[str]:
    """The trajectories that a viewer lists which opens the run now, and shows the last of."""
    app = create_app(run.root, token="t", allow_hosts=("testserver",))
    with TestClient(app, headers={"Authorization": "Bearer t"}) as client:
        [row] = client.get("/api/runs").raise_for_status().json()["runs"]
        address = f"/api/runs/{row['key']}"
        listed = client.get(
            f"{address}/trajectories?sort=step&limit=500"
        ).raise_for_status()
        rows = listed.json()["rows"]
        client.get(f"{address}/overview").raise_for_status()
        if client.get(address).raise_for_status().json()["damage"]:
            return []
        if rows:
            client.get(f"{address}/tokens?id={rows[-1]['id']}").raise_for_status()
    return sorted(row["id"] for row in rows)
