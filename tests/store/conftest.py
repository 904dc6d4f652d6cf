"""A small trajectory, made to order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.store import RunDirectory
from agentrl.types import Trajectory
from tests.store.made import made_trajectory

Make = Callable[..., Trajectory]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def make() -> Make:
    return made_trajectory
