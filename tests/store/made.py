"""Trajectories of one turn, made to order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.types import CallRecord, Segment, SegmentKind, Task, Trajectory
from tests.kit.episodes import trajectory, turn, user


def made_trajectory(
    group_index: int,
    *,
    text: str = "done",
    num_tokens: int = 4,
    question: str = "How much?",
    calls: Sequence[CallRecord] = (),
    **changes: Any,
) -> Trajectory:
    """A finished one.

    Args:
        group_index: its group; the task is one of two.
        text: what the policy says in its only turn.
        num_tokens: of the prompt.
        question: of the task.
        calls: of the turn.
        changes: fields of the trajectory.
    """
    prompt = Segment(SegmentKind.PROMPT, np.arange(num_tokens))
    policy = Segment(SegmentKind.POLICY, np.array([7, 8]), np.array([-0.25, -0.5]), 1)
    asked = user(question)
    only = turn(0, [prompt], [policy], text, observed=(asked,), calls=tuple(calls))
    turns = changes.pop("turns", (only,))
    fields: dict[str, Any] = {
        "group": changes.pop("group_index", group_index),
        "rollout": changes.pop("rollout_index", 0),
        "task": Task(f"task-{group_index % 2}", (asked,), 42, "code"),
        "rewards": {"correct": 1.0},
        "reward": 1.0,
    }
    return trajectory(*turns, **{**fields, **changes})
