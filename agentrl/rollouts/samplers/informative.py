"""Signal sampler: Thompson sampling of the tasks whose groups have rewards that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.rollouts import GroupOutcome
from agentrl.rollouts.samplers.free_tasks import FreeTasks
from agentrl.rollouts.samplers.settings import SignalSettings
from agentrl.types import Task
from agentrl.types.arrays import I64


class Signal(FreeTasks):
    """The chance that a task's next group is informative has the distribution Beta(1 + informative,
    1 + uninformative groups), whose counts fade by ``decay``; the task of the highest sample is
    drawn.

    - A group is informative where the rewards of its finished episodes differ, whether it is
      trained or filtered. One with fewer than two of them says nothing.
    - A task whose group still runs is passed over, as long as there are others: its sample would be
      drawn from the same distribution again.

    Args:
        settings: how fast evidence fades.
        tasks: the data set.
        seed: ``run.seed``.
        shuffle: without effect.
    """

    def __init__(
        self, settings: SignalSettings, tasks: Sequence[Task], *, seed: int, shuffle: bool
    ) -> None:
        super().__init__(len(tasks), seed, "signal")
        self._decay = settings.decay
        self._counts = np.zeros((len(tasks), 2))
        """Of each task the informative and the uninformative groups."""

    def _choice(self, generator: np.random.Generator, candidates: I64) -> int:
        """The task of the highest sample. Those without an observation are alike: the highest of
        their samples is drawn at once, since a large data set has many of them."""
        seen = self._counts[candidates].sum(axis=1) > 0
        known = candidates[seen]
        new = candidates[~seen]
        samples = generator.beta(1.0 + self._counts[known, 0], 1.0 + self._counts[known, 1])
        # Beta(1, 1) is uniform, and the highest of n uniform samples is distributed as U^(1/n).
        highest_of_new = generator.random() ** (1.0 / len(new)) if len(new) else 0.0
        if not len(known) or highest_of_new > samples.max():
            return int(generator.choice(new))
        return int(known[samples.argmax()])

    def _learn(self, task_index: int, outcome: GroupOutcome) -> None:
        rewards = [trajectory.reward for trajectory in outcome.group.finished]
        if len(rewards) >= 2:
            self._counts[task_index] *= self._decay
            self._counts[task_index, 0 if len(set(rewards)) > 1 else 1] += 1.0

    def state(self) -> dict[str, Any]:
        (seen,) = np.nonzero(self._counts.sum(axis=1))
        counts = [[int(index), *self._counts[index].tolist()] for index in seen]
        return {**super().state(), "counts": counts}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        for index, *counts in state["counts"]:
            self._counts[index] = counts
