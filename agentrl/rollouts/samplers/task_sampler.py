"""Task sampler: the protocol of a curriculum."""

from __future__ import annotations

from typing import Any, Protocol

from agentrl.rollouts import GroupOutcome


class TaskSampler(Protocol):
    """Chooses the task of each group, and learns what came of it.

    - Every call comes under one lock of the rollout service: a sampler needs none of its own.
    - Each task that ``next`` gave is observed exactly once, when its group has come to its end,
      whatever the end: trained, filtered, stale, failed or cancelled. With an asynchronous schedule
      that is many calls of ``next`` later, and in another order.
    - A sampler that draws at random takes its numbers from its seed and its own count of draws, so
      that a resumed run goes on as if it had never stopped.
    """

    def next(self) -> int:
        """The index of the next group's task; there is always one."""
        ...

    def observe(self, task_index: int, outcome: GroupOutcome) -> None:
        """The group of a task has come to its end; ``outcome.group.finished`` may be empty."""
        ...

    def state(self) -> Any:
        """All that ``load`` needs to go on from here: what JSON gives back as it was."""
        ...

    def load(self, state: Any) -> None:
        """Goes on from what ``state`` once returned."""
        ...
