"""A run whose trajectories are made to order, and its index in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import RunDirectory
from agentrl.types import CallRecord, ToolCall, ToolResult, Trajectory
from agentrl.viewer.index import RunIndex
from tests.store.made import made_trajectory

Make = Callable[..., Trajectory]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def make() -> Make:
    """One turn that calls python, whose output is ``output``."""

    def made(group_index: int, *, output: str = "42", **changes: Any) -> Trajectory:
        call = ToolCall("c0", "python", {"code": "6*7"})
        result = ToolResult("c0", "python", output)
        return made_trajectory(
            group_index, calls=[CallRecord(call, None, result)], **changes
        )

    return made


@pytest.fixture
def index(run: RunDirectory, tmp_path: Path) -> Iterator[RunIndex]:
    with RunIndex(run, tmp_path / "cache") as opened:
        yield opened
