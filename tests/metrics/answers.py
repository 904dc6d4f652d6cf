"""Groups of answers made of given tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.types import (
    CallRecord,
    Segment,
    SegmentKind,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)
from tests.kit.episodes import sampled as policy
from tests.kit.episodes import trajectory, turn


def answer_group(
    index: int,
    answers: Sequence[Sequence[int]],
    rewards: Sequence[float] | None = None,
    *,
    calls: Sequence[int] | None = None,
) -> TrajectoryGroup:
    """A group of one turn's answers, with their rewards, and how many tools each called."""
    task = Task(f"task-{index}")
    prompt = [Segment(SegmentKind.PROMPT, np.arange(3))]
    failed = ToolResult("call_0", "add", "no", "exception")
    call = CallRecord(ToolCall("call_0", "add", {}), None, failed)

    def answered(rollout: int, tokens: Sequence[int]) -> Trajectory:
        own = (call,) * (calls[rollout] if calls is not None else 0)
        only = turn(0, prompt, [policy(tokens, -1.0)], calls=own)
        reward = rewards[rollout] if rewards is not None else 1.0
        return trajectory(only, group=index, rollout=rollout, task=task, reward=reward)

    rollouts = tuple(answered(n, tokens) for n, tokens in enumerate(answers))
    return TrajectoryGroup(index, task, rollouts)


def sampled(dependent: float, seed: int = 0, groups: int = 12) -> list[TrajectoryGroup]:
    """Answers of 60 tokens: a share of them are of 5 words that belong to the question, the others
    of 50 that all questions share."""
    generator = np.random.default_rng(seed)
    made = []
    for index in range(groups):
        answers = []
        for _ in range(6):
            own = generator.random(60) < dependent
            words = np.where(
                own,
                100 + 5 * index + generator.integers(5, size=60),
                generator.integers(50, size=60),
            )
            answers.append(words.tolist())
        made.append(answer_group(index, answers))
    return made
