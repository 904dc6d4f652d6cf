"""Prompt sampler: maps a group's index to its task, the same in every attempt of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from agentrl.errors import DataError
from agentrl.types import Task, seed_for


@dataclass(eq=False)
class PromptSampler:
    """Draw ``first_draw + d`` is position d mod n of epoch d // n.

    Each epoch has its own permutation, derived from the root seed.

    Args:
        tasks: the data set.
        seed: ``run.seed``.
        shuffle: whether epochs are permuted.
        first_draw: draw of the first task; earlier ones belong to an earlier stage.

    Raises:
        DataError: no task, or two tasks of one id.
    """

    tasks: Sequence[Task]
    _: KW_ONLY
    seed: int
    shuffle: bool
    first_draw: int = 0

    def __post_init__(self) -> None:
        if not self.tasks:
            raise DataError(
                "PromptSampler.tasks holds no task; point it at a data set with at least one"
            )
        num_ids = len({task.id for task in self.tasks})
        if num_ids != len(self.tasks):
            raise DataError(
                f"PromptSampler.tasks holds {len(self.tasks)} tasks but {num_ids} different ids; "
                "ids must be unique"
            )
        self._epoch = -1
        self._order = np.arange(len(self.tasks))

    def task(self, group_index: int) -> Task:
        """The task of a draw."""
        epoch, position = divmod(group_index - self.first_draw, len(self.tasks))
        if self.shuffle and epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(seed_for(self.seed, "order", epoch)))
            self._order = generator.permutation(len(self.tasks))
            self._epoch = epoch
        return self.tasks[int(self._order[position])]
