"""A run whose trajectories are made to order, and its index in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.store import RunDirectory
from agentrl.types import (
    CallRecord,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from agentrl.viewer.index import RunIndex

Make = Callable[..., Trajectory]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def make() -> Make:
    """One turn that calls python, whose output is ``output``."""

    def made(
        group_index: int,
        *,
        text: str = "done",
        output: str = "42",
        question: str = "How much?",
        **changes: Any,
    ) -> Trajectory:
        asked = {"role": "user", "content": question}
        call = ToolCall("c0", "python", {"code": "6*7"})
        result = ToolResult("c0", "python", output)
        prompt = Segment(SegmentKind.PROMPT, np.arange(4))
        policy = Segment(SegmentKind.POLICY, np.array([7, 8]), np.array([-0.25, -0.5]), 1)
        turn = Turn(
            0,
            None,
            (prompt,),
            (policy,),
            text,
            {"role": "assistant", "content": text},
            observed=(asked,),
            calls=(CallRecord(call, None, result),),
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


@pytest.fixture
def index(run: RunDirectory, tmp_path: Path) -> Iterator[RunIndex]:
    with RunIndex(run, tmp_path / "cache") as opened:
        yield opened
