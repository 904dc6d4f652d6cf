"""Blame: time, the sum of the parts against the logged loss, and a planted token's rank."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from agentrl.store import Annotation, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Message, Segment, SegmentKind, Status, Task, Trajectory, Turn
from agentrl.viewer.analysis.blame import Blame, blame, trained_tokens
from benchmarks.figures import Figures

__all__ = ["measure"]

TRAJECTORIES = 512
TURNS = 4
SAMPLED = 250
"""Policy tokens of a turn; as many are given."""
PLANTED = 137
"""The trajectory whose 300th sampled token costs most."""
PLACE = 300
SECONDS = 3.0
NOTE = (
    f"Blame: a sealed step of {TRAJECTORIES} trajectories of {2 * SAMPLED * TURNS:,} tokens in "
    f"{TURNS} turns, half of them sampled, one in ten of those not trained. Loss and weight are "
    "stored in float32; the logged loss is their sum in float64, before that. The time runs from "
    "the first read of a shard."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of Blame."""
    rng = np.random.default_rng(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        annotations, logged = _write(run, rng)
        reader = TrajectoryReader(run)
        summaries = reader.summaries()
        for level in ("token", "trajectory"):
            started = time.perf_counter()
            found = blame(
                trained_tokens(run, reader, summaries, annotations),
                "loss",
                "token" if level == "token" else "trajectory",
                logged=logged,
            )
            seconds = time.perf_counter() - started
            figures.at_most(f"seconds by {level}", seconds, "s", SECONDS)
            figures.at_most(f"sum less logged loss, by {level}", _error(found), "", 1e-6)
            figures.at_most(f"rank of the planted {level}", _rank(found), "", 1)
    figures.note(NOTE)


def _write(run: RunDirectory, rng: np.random.Generator) -> tuple[list[Annotation], float]:
    tokens = TURNS * SAMPLED
    trained = rng.random((TRAJECTORIES, tokens)) > 0.1
    trained[PLANTED, PLACE] = True
    weight = trained / trained.sum()
    loss = rng.normal(0.0, 0.5, (TRAJECTORIES, tokens))
    loss[PLANTED, PLACE] = 900.0
    annotations = []
    with TrajectoryWriter(run) as writer:
        for index in range(TRAJECTORIES):
            writer.write(_trajectory(index, rng), 1)
            arrays = {
                "loss_weight": weight[index].astype(np.float32),
                "token_loss": loss[index].astype(np.float32),
            }
            annotations.append(Annotation(f"{index}-0-0", 1, arrays=arrays))
    return annotations, float((weight * loss).sum())


def _trajectory(index: int, rng: np.random.Generator) -> Trajectory:
    asked: Message = {"role": "user", "content": "Go on"}
    turns = []
    for number in range(TURNS):
        ids = rng.integers(0, 150_000, 2 * SAMPLED, dtype=np.int32)
        kind = SegmentKind.OBSERVATION if number else SegmentKind.PROMPT
        logprobs = -rng.exponential(0.5, SAMPLED).astype(np.float32)
        turns.append(
            Turn(
                number,
                number - 1 if number else None,
                (Segment(kind, ids[:SAMPLED]),),
                (Segment(SegmentKind.POLICY, ids[SAMPLED:], logprobs, 1),),
                "text",
                {"role": "assistant", "content": "text"},
                observed=(asked,),
            )
        )
    task = Task(f"task-{index}", (asked,))
    return Trajectory(
        task, index, 0, 0, "train", tuple(turns), Status("terminated"), reward=1.0
    )


def _error(found: Blame) -> float:
    assert found.logged is not None
    return abs(found.total - found.logged)


def _rank(found: Blame) -> int:
    """The place of what was planted, counted from 1; past the end where it is no row."""
    wanted = f"{PLANTED}-0-0"
    ids = [row.id for row in found.rows]
    return ids.index(wanted) + 1 if wanted in ids else len(ids) + 1
