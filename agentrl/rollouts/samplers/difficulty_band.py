"""Difficulty band sampler: tasks whose recent solve rate lies between two bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.metrics import correctness
from agentrl.rollouts import GroupOutcome
from agentrl.rollouts.samplers.free_tasks import FreeTasks
from agentrl.rollouts.samplers.settings import DifficultyBandSettings
from agentrl.types import Task
from agentrl.types.arrays import I64


class DifficultyBand(FreeTasks):
    """A draw goes to a task within the band or never measured, each as likely as the others; where
    no such task is left, to one of those that are nearest to the band.

    A task whose group still runs is passed over, as long as there are others.

    Args:
        settings: the band.
        tasks: the data set.
        seed: ``run.seed``.
        shuffle: without effect.
    """

    def __init__(
        self,
        settings: DifficultyBandSettings,
        tasks: Sequence[Task],
        *,
        seed: int,
        shuffle: bool,
    ) -> None:
        super().__init__(len(tasks), seed, "difficulty_band")
        self._settings = settings
        self._recent: dict[int, list[tuple[float, int]]] = {}
        """Of each task the newest groups: episodes solved, and finished."""
        self._distance = np.zeros(len(tasks))
        """How far each task lies outside of the band; 0 for those never measured."""

    def _choice(self, generator: np.random.Generator, candidates: I64) -> int:
        if generator.random() >= self._settings.explore:
            distances = self._distance[candidates]
            candidates = candidates[distances == distances.min()]
        return int(generator.choice(candidates))

    def _learn(self, task_index: int, outcome: GroupOutcome) -> None:
        finished = outcome.group.finished
        if finished:
            solved = sum(correctness(trajectory) for trajectory in finished)
            recent = [*self._recent.get(task_index, ()), (solved, len(finished))]
            self._keep(task_index, recent)

    def _keep(self, task_index: int, recent: list[tuple[float, int]]) -> None:
        own = recent[-self._settings.window :]
        rate = sum(solved for solved, _ in own) / sum(finished for _, finished in own)
        self._recent[task_index] = own
        self._distance[task_index] = max(
            self._settings.low - rate, rate - self._settings.high, 0.0
        )

    def state(self) -> dict[str, Any]:
        recent = [
            [index, [list(pair) for pair in own]] for index, own in self._recent.items()
        ]
        return {**super().state(), "recent": recent}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        for task_index, own in state["recent"]:
            self._keep(task_index, [(solved, finished) for solved, finished in own])
