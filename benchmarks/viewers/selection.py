"""Annotations: seconds in which a step's columns are laid with the tokens of its trajectories."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from agentrl.algorithms import make_algorithm
from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.recording.learned_tokens import LearnedTokens
from agentrl.rollouts import make_batch
from agentrl.training import Layout
from agentrl.types import Stats, Task, Trajectory, TrajectoryGroup
from benchmarks.figures import Figures
from benchmarks.viewers.trajectories import Episodes

__all__ = ["measure"]

TOKENS = 4_000
NUMBER = 512
GROUP = 8
REPEATS = 9
MILLISECONDS = 50.0
GROWTH = 8.0
NOTE = (
    f"Annotations: {NUMBER} trajectories of {TOKENS:,} tokens in 4 turns, half of them sampled, "
    "two columns of a learner (ratio and token_loss) beside the weight and the reason of each "
    f"token; medians of {REPEATS}. Four times the trajectories take four times as long where the "
    "selection is linear, and sixteen times where it is quadratic."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of the selection."""
    whole, quarter = (_seconds(number, arguments.seed) for number in (NUMBER, NUMBER // 4))
    name = f"selection for annotations, {NUMBER} x {TOKENS:,} tokens, two columns"
    figures.at_most(name, 1e3 * whole, "ms", MILLISECONDS)
    figures.at_most("against a quarter of the trajectories", whole / quarter, "x", GROWTH)
    figures.note(NOTE)


def _seconds(number: int, seed: int) -> float:
    """The median time of all annotations of a step of so many trajectories."""
    episodes = Episodes(TOKENS, seed)
    groups = []
    for index in range(number // GROUP):
        rollouts = tuple(episodes.trajectory(index, rollout) for rollout in range(GROUP))
        groups.append(TrajectoryGroup(index, Task(f"task-{index}"), rollouts))
    learned = _learned(groups)
    trajectories: dict[tuple[int, int], Trajectory] = {
        (one.group_index, one.rollout_index): one
        for group in groups
        for one in group.trajectories
    }
    taken = []
    for _ in range(REPEATS):
        started = time.process_time()
        found = list(learned.annotations("rl", 1, trajectories))
        taken.append(time.process_time() - started)
        if len(found) != number:
            raise RuntimeError(f"{number} trajectories have {len(found)} annotations")
    return statistics.median(taken)


def _learned(groups: list[TrajectoryGroup]) -> LearnedTokens:
    """What one learner leaves of a step's only update."""
    number = sum(len(group.trajectories) for group in groups)
    batch = make_batch(groups, credit=np.zeros(number, np.float32), oldest_version=0)
    row = max(TOKENS, 16_384)
    planned = PlannedBatch.plan(
        batch,
        make_algorithm("grpo", {}),
        Layout(1, row, float(row)),
        mini_batch_groups=len(groups),
        forward_tokens=row,
        seed=1,
        state={},
        policy_version=0,
    )
    learned = LearnedTokens(planned, num_passes=1, oldest_version=0, detail="tokens")
    size = batch.token_ids.size
    columns = {name: np.ones(size, np.float32) for name in ("ratio", "token_loss")}
    for mini_batch in planned.mini_batches(1):
        learned.add("actor", mini_batch(1), columns, Stats())
    return learned
