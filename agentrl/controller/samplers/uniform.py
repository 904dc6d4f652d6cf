"""Uniform sampler: every task once an epoch, each epoch in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.controller.samplers.settings import UniformSettings
from agentrl.rollouts import GroupOutcome
from agentrl.types import Task, seed_for


class Uniform:
    """The draw at position p is task p mod n of epoch p // n.

    Args:
        settings: none of its own.
        tasks: the data set.
        seed: ``run.seed``; the permutation of an epoch is derived from it.
        shuffle: whether epochs are permuted.
    """

    def __init__(
        self, settings: UniformSettings, tasks: Sequence[Task], *, seed: int, shuffle: bool
    ) -> None:
        self._seed = seed
        self._shuffle = shuffle
        self._drawn = 0
        self._epoch = -1
        self._order = np.arange(len(tasks))

    def at(self, position: int) -> int:
        """The task at a position."""
        epoch, place = divmod(position, len(self._order))
        if self._shuffle and epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(seed_for(self._seed, "order", epoch)))
            self._order = generator.permutation(len(self._order))
            self._epoch = epoch
        return int(self._order[place])

    def next(self) -> int:
        self._drawn += 1
        return self.at(self._drawn - 1)

    def observe(self, task_index: int, outcome: GroupOutcome) -> None:
        """It learns nothing."""

    def state(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def load(self, state: dict[str, Any]) -> None:
        self._drawn = int(state["drawn"])
