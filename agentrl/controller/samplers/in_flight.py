"""Tasks in flight: those that were drawn and are not observed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class InFlight:
    """Counts draws without an observation.

    Args:
        num_tasks: of the data set.
    """

    def __init__(self, num_tasks: int) -> None:
        self._all = np.arange(num_tasks)
        self._running: Counter[int] = Counter()

    def add(self, task_index: int) -> None:
        """A task is drawn."""
        self._running[task_index] += 1

    def remove(self, task_index: int) -> None:
        """One of its groups has come to its end."""
        self._running[task_index] -= 1
        if not self._running[task_index]:
            del self._running[task_index]

    def others(self) -> npt.NDArray[np.int64]:
        """The tasks of which no group runs; all of them where that is none."""
        if not self._running or len(self._running) == len(self._all):
            return self._all
        free = np.ones(len(self._all), dtype=bool)
        free[list(self._running)] = False
        return self._all[free]

    def state(self) -> list[list[int]]:
        """Each task in flight, and how often."""
        return [[index, count] for index, count in sorted(self._running.items())]

    def load(self, state: Iterable[tuple[int, int]]) -> None:
        """Goes on from what ``state`` returned."""
        self._running = Counter(dict(state))
