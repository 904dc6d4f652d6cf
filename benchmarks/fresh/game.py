"""Fresh games: maps of the game example that no setting was chosen on."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.types import Task
from benchmarks.fresh.unseen import unseen


def tasks(num_tasks: int = 500) -> Iterator[Task]:
    """The data set: always the same."""
    return unseen("game", num_tasks)
