"""A small trajectory, made to order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.store import RunDirectory
from agentrl.types import Segment, SegmentKind, Status, Task, Trajectory, Turn

Make = Callable[..., Trajectory]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def make() -> Make:
    def made(
        group_index: int, *, text: str = "done", num_tokens: int = 4, **changes: Any
    ) -> Trajectory:
        prompt = Segment(SegmentKind.PROMPT, np.arange(num_tokens))
        policy = Segment(SegmentKind.POLICY, np.array([7, 8]), np.array([-0.25, -0.5]), 1)
        asked = {"role": "user", "content": "How much?"}
        turn = Turn(
            0,
            None,
            (prompt,),
            (policy,),
            text,
            {"role": "assistant", "content": text},
            observed=(asked,),
        )
        fields: dict[str, Any] = {
            "task": Task(f"task-{group_index % 2}", (asked,), 42, "code"),
            "group_index": group_index,
            "rollout_index": 0,
            "attempt": 0,
            "purpose": "train",
            "turns": (turn,),
            "status": Status("terminated"),
            "rewards": {"correct": 1.0},
            "reward": 1.0,
        }
        return Trajectory(**{**fields, **changes})

    return made
