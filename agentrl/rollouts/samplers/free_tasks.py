"""Free tasks: samplers that draw among the tasks of which no group runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

import numpy as np

from agentrl.rollouts import GroupOutcome
from agentrl.types import seed_for
from agentrl.types.arrays import I64


class FreeTasks(ABC):
    """Passes a task whose group still runs over, as long as there are others.

    Args:
        num_tasks: of the data set.
        seed: ``run.seed``.
        purpose: of the seeds of its draws.
    """

    def __init__(self, num_tasks: int, seed: int, purpose: str) -> None:
        self._all = np.arange(num_tasks)
        self._seed = seed
        self._purpose = purpose
        self._drawn = 0
        # of each task the draws without an observation
        self._running: Counter[int] = Counter()

    def next(self) -> int:
        seed = seed_for(self._seed, self._purpose, self._drawn)
        generator = np.random.Generator(np.random.Philox(seed))
        self._drawn += 1
        task_index = self._choice(generator, self._free())
        self._running[task_index] += 1
        return task_index

    def observe(self, task_index: int, outcome: GroupOutcome) -> None:
        self._running[task_index] -= 1
        if not self._running[task_index]:
            del self._running[task_index]
        self._learn(task_index, outcome)

    def state(self) -> dict[str, Any]:
        running = [[index, count] for index, count in sorted(self._running.items())]
        return {"drawn": self._drawn, "in_flight": running}

    def load(self, state: dict[str, Any]) -> None:
        self._drawn = int(state["drawn"])
        self._running = Counter(dict(state["in_flight"]))

    @abstractmethod
    def _choice(self, generator: np.random.Generator, candidates: I64) -> int:
        """One of the candidates."""

    @abstractmethod
    def _learn(self, task_index: int, outcome: GroupOutcome) -> None:
        """A group has come to its end."""

    def _free(self) -> I64:
        """The tasks of which no group runs; all of them where that is none."""
        if not self._running or len(self._running) == len(self._all):
            return self._all
        free = np.ones(len(self._all), dtype=bool)
        free[list(self._running)] = False
        return self._all[free]
