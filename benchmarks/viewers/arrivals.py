"""Arrivals: a process that writes trajectories into a run at an even pace, as a trainer does.

It says ``ready``, begins once a line comes in, seals a step after ``A_STEP`` trajectories, and
beats as a run that is alive.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from agentrl.store import Heartbeat, RunDirectory, TrajectoryWriter
from benchmarks.figures import ROOT
from benchmarks.viewers.trajectories import Episodes

__all__ = ["A_STEP", "arrive"]

A_STEP = 250
DISTINCT = 64
TOKENS = 2_000


def arrive(
    run: Path, *, number: int, seconds: float, group: int, step: int
) -> subprocess.Popen[str]:
    """Starts the process; it has begun to write when this returns.

    Args:
        run: where.
        number: how many trajectories, one a group.
        seconds: over which they arrive.
        group: the first one's group index.
        step: the first one's step.
    """
    asked = [run, number, seconds, group, step]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.viewers.arrivals", *map(str, asked)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if (said := process.stdout.readline()) != "ready\n":
        raise RuntimeError(f"the process that writes must get ready, got {said!r}")
    process.stdin.write("begin\n")
    process.stdin.flush()
    return process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("group", type=int)
    parser.add_argument("step", type=int)
    asked = parser.parse_args()
    run = RunDirectory.open(asked.run)
    episodes = Episodes(TOKENS, asked.group)
    made = [episodes.trajectory(0, 0) for _ in range(min(DISTINCT, asked.number))]
    learned = [episodes.annotation(one, 0) for one in made]
    with TrajectoryWriter(run, "live") as writer, Heartbeat(run):
        print("ready", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        for number in range(asked.number):
            time.sleep(
                max(0.0, begun + number * asked.seconds / asked.number - time.monotonic())
            )
            step = asked.step + number // A_STEP
            one = replace(made[number % len(made)], group_index=asked.group + number)
            writer.write(one, step)
            own = replace(learned[number % len(made)], trajectory_id=one.id, step=step)
            writer.annotate(own)
            if number % A_STEP == A_STEP - 1:
                writer.seal(step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
