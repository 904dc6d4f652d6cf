"""Killed writer: writes until it is killed, for ``benchmarks.viewers.kills``.

It reads step numbers, a line each, and forks for each a process that writes from that step on.
The process says ``pid N``, and ``STEP`` once all up to that step is written, annotated and flushed.
"""

from __future__ import annotations

import os
import sys
from itertools import count

import numpy as np

from agentrl.store import Annotation, RunDirectory, TrajectoryWriter
from agentrl.types import Trajectory
from tests.kit.episodes import sampled, trajectory, turn

A_STEP = 3
"""Trajectories of a step, all but the last of which are annotated."""
TOKENS = 50
"""Of a trajectory; each tells its group."""


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def episode(group_index: int) -> Trajectory:
    policy = sampled(np.full(TOKENS, group_index))
    return trajectory(turn(0, (), [policy], "x" * 200), group=group_index, reward=1.0)


def learned(group_index: int, step: int) -> Annotation:
    ratio = np.full(TOKENS, group_index, np.float32)
    return Annotation(
        f"{group_index}-0-0", step, values={"stage": "rl"}, arrays={"ratio": ratio}
    )


def write(run: RunDirectory, first: int) -> None:
    tell(f"pid {os.getpid()}")
    writer = TrajectoryWriter(run)
    for step in count(first):
        groups = range(step * A_STEP, (step + 1) * A_STEP)
        for group_index in groups:
            writer.write(episode(group_index), step)
        for group_index in groups[:-1]:
            writer.annotate(learned(group_index, step))
        if step % 3:  # each third is left to the next writer
            writer.seal(step)
        writer.flush()
        tell(str(step))


if __name__ == "__main__":
    directory = RunDirectory.open(sys.argv[1])
    for line in sys.stdin:
        if child := os.fork():
            os.waitpid(child, 0)
            tell("dead")
        else:
            write(directory, int(line))
