"""Behaviour: time, a planted phrase's rank, and findings where steps are shuffled."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from agentrl.store import (
    RunDirectory,
    TrajectoryReader,
    TrajectorySummary,
    TrajectoryWriter,
)
from agentrl.types import (
    CallRecord,
    Message,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from agentrl.viewer.analysis.behaviour import Behaviour, behaviour
from agentrl.viewer.analysis.stored_rows import Episode, read_episodes
from benchmarks.figures import Figures

__all__ = ["measure"]

TASKS = 250
ROLLOUTS = 8
WORDS = 300
PLANTED = "let me double check that"
SHARE = 0.1
SHUFFLES = 20
SECONDS = 1.5
NOTE = (
    f"Behaviour: two ranges of {TASKS * ROLLOUTS:,} sealed trajectories, {ROLLOUTS} rollouts a "
    f"task, {WORDS} words of Zipf-like frequency each, of which a tenth are its task's own. "
    f"{SHARE:.0%} of the second range say {PLANTED!r}. The time runs from the first read of a "
    f"file. Shuffled: {SHUFFLES} times each trajectories, and whole tasks, get a range at random."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of Behaviour."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        _write(run, arguments.seed)
        reader = TrajectoryReader(run)
        summaries = reader.summaries()
        started = time.perf_counter()
        found = behaviour(
            *(read_episodes(run, reader, _of(summaries, step)) for step in (1, 2))
        )
        figures.at_most(
            "seconds of a comparison", time.perf_counter() - started, "s", SECONDS
        )
        figures.at_most("rank of the planted phrase", _rank(found), "", 5)
        episodes = list(read_episodes(run, reader, summaries))
        rng = random.Random(arguments.seed)
        for unit in ("id", "task_id"):
            halves = (_halves(episodes, unit, rng) for _ in range(SHUFFLES))
            wrong = sum(_num_found(behaviour(*pair)) for pair in halves)
            name = {"id": "trajectories", "task_id": "tasks"}[unit]
            figures.at_most(f"findings in {SHUFFLES} shuffles of {name}", wrong, "", 0)
    figures.note(NOTE)


def _write(run: RunDirectory, seed: int) -> None:
    rng = random.Random(seed)
    words = [f"word{index}" for index in range(4000)]
    weights = [1.0 / (index + 1) for index in range(4000)]
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            for task in range(TASKS):
                own = [f"topic{step}x{task}x{index}" for index in range(12)]
                for rollout in range(ROLLOUTS):
                    said = [
                        *rng.choices(words, weights, k=WORDS),
                        *rng.choices(own, k=WORDS // 10),
                    ]
                    rng.shuffle(said)
                    if step == 2 and rng.random() < SHARE:
                        said.append(PLANTED)
                    writer.write(
                        _trajectory(task + step * TASKS, rollout, " ".join(said)), step
                    )
            writer.seal(step)


def _trajectory(group_index: int, rollout_index: int, text: str) -> Trajectory:
    asked: Message = {"role": "user", "content": "Solve this task, please."}
    given = np.arange(9, dtype=np.int32)
    sampled = np.arange(50, dtype=np.int32)
    logprobs = np.full(50, -0.5, np.float32)
    call = CallRecord(ToolCall("a", "python", {}), None, ToolResult("a", "python", "4"))
    turns = tuple(
        Turn(
            index,
            index - 1 if index else None,
            (Segment(SegmentKind.TEMPLATE if index else SegmentKind.PROMPT, given),),
            (Segment(SegmentKind.POLICY, sampled, logprobs, 1),),
            part,
            {"role": "assistant", "content": part},
            observed=() if index else (asked,),
            calls=() if index else (call,),
        )
        for index, part in enumerate((text[: len(text) // 2], text[len(text) // 2 :]))
    )
    task = Task(f"task-{group_index}", (asked,), data_source="code")
    status = Status("terminated")
    return Trajectory(
        task,
        group_index,
        rollout_index,
        0,
        "train",
        turns,
        status,
        reward=rollout_index % 2,
    )


def _of(summaries: list[TrajectorySummary], step: int) -> list[TrajectorySummary]:
    return [summary for summary in summaries if summary.step == step]


def _rank(found: Behaviour) -> int:
    """The place of the phrase, counted from 1; one below the last where it was not found."""
    texts = [change.text for change in found.phrases]
    return next(
        (place for place, text in enumerate(texts, 1) if PLANTED in text), len(texts) + 6
    )


def _num_found(found: Behaviour) -> int:
    return len(found.phrases) + len(found.patterns)


def _halves(
    episodes: list[Episode], unit: str, rng: random.Random
) -> tuple[list[Episode], ...]:
    names = sorted({getattr(episode, unit) for episode in episodes})
    rng.shuffle(names)
    first = set(names[: len(names) // 2])
    chosen = [getattr(episode, unit) in first for episode in episodes]
    pairs = list(zip(episodes, chosen, strict=True))
    return [e for e, own in pairs if own], [e for e, own in pairs if not own]
