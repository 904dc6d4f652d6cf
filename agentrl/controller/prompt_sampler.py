"""Prompt sampler: maps a group's index to its task, the same in every attempt of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.errors import DataError
from agentrl.types import Task, seed_for


class PromptSampler:
    """Draw ``first_draw + d`` is position d mod n of epoch d // n.

    Each epoch has its own permutation, derived from the root seed.

    Args:
        tasks: the data set.
        seed: ``run.seed``.
        shuffle: whether epochs are permuted.
        first_draw: draw of the first task; earlier ones belong to an earlier stage.
        name: what the data set is called in an error.

    Raises:
        DataError: no task, or two tasks of one id.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        shuffle: bool,
        first_draw: int = 0,
        name: str = "data.train",
    ) -> None:
        if not tasks:
            raise DataError(f"{name} holds no task; point it at a data set with at least one")
        ids = {task.id for task in tasks}
        if len(ids) != len(tasks):
            raise DataError(
                f"{name} holds {len(tasks)} tasks but {len(ids)} different ids; ids must be unique"
            )
        self._tasks = tasks
        self._seed = seed
        self._shuffle = shuffle
        self._first = first_draw
        self._epoch = -1
        self._order = np.arange(len(tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, group_index: int) -> Task:
        """The task of a draw."""
        epoch, position = divmod(group_index - self._first, len(self._tasks))
        if self._shuffle and epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(seed_for(self._seed, "order", epoch)))
            self._order = generator.permutation(len(self._tasks))
            self._epoch = epoch
        return self._tasks[int(self._order[position])]
