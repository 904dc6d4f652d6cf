"""Uniform sampler: every task once an epoch, each epoch in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.rollouts import GroupOutcome
from agentrl.rollouts.samplers.mixture import Mixture, Share
from agentrl.rollouts.samplers.settings import UniformSettings
from agentrl.types import Task, seed_for
from agentrl.types.arrays import I64


class Uniform:
    """The draw at position p is task p mod n of epoch p // n.

    Of a mixture, each source has epochs of its own, and its weight decides how often it is drawn.

    Args:
        settings: none of its own.
        tasks: the data set.
        seed: ``run.seed``; the permutation of an epoch is derived from it.
        shuffle: whether epochs are permuted.
        mixture: the sources of the tasks, in their order; empty for tasks without weights.
    """

    def __init__(
        self,
        settings: UniformSettings,
        tasks: Sequence[Task],
        *,
        seed: int,
        shuffle: bool,
        mixture: Sequence[Share] = (),
    ) -> None:
        self._drawn = 0
        self._weights = [share.weight for share in mixture]
        sizes = [share.num_tasks for share in mixture] or [len(tasks)]
        self._epochs = [
            # the first one's orders are those of a data set without weights
            _Epochs(size, seed, [n] if n else [], shuffle=shuffle)
            for n, size in enumerate(sizes)
        ]
        self._firsts = [sum(sizes[:n]) for n in range(len(sizes))]
        self._restart()

    def at(self, position: int) -> int:
        """The task at a position."""
        if not self._weights:
            return self._epochs[0].at(position)
        if position < self._reached:
            self._restart()
        while self._reached <= position:
            self._last = self._mixture.next()
            self._reached += 1
        source, place = self._last
        return self._firsts[source] + self._epochs[source].at(place)

    def next(self) -> int:
        self._drawn += 1
        return self.at(self._drawn - 1)

    def observe(self, task_index: int, outcome: GroupOutcome) -> None:
        """It learns nothing."""

    def state(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def load(self, state: dict[str, Any]) -> None:
        self._drawn = int(state["drawn"])

    def _restart(self) -> None:
        """The mixture from its first draw on; it only goes forward."""
        self._mixture = Mixture(self._weights or [1.0])
        self._reached = 0
        self._last = (0, 0)


class _Epochs:
    """Positions of one source, epoch after epoch."""

    def __init__(
        self, size: int, seed: int, place: Sequence[int], *, shuffle: bool
    ) -> None:
        self._size = size
        self._seed = seed
        self._place = place
        self._shuffle = shuffle
        self._epoch = -1
        self._order: I64 = np.empty(0, dtype=np.int64)

    def at(self, position: int) -> int:
        epoch, place = divmod(position, self._size)
        if not self._shuffle:
            return place
        if epoch != self._epoch:
            seed = seed_for(self._seed, "order", epoch, *self._place)
            generator = np.random.Generator(np.random.Philox(seed))
            self._order = generator.permutation(self._size)
            self._epoch = epoch
        return int(self._order[place])
