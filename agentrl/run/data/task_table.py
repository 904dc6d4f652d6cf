"""Task table: the tasks of a data set by number, made of their rows where they are asked for."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from agentrl.rollouts.samplers.mixture import Share
from agentrl.run.data.images import place_row_images
from agentrl.run.data.row_tables import LocatedRow, Parts, SourceRows, read_row
from agentrl.run.data.task_rows import check_style, same_id, task_of
from agentrl.types import Task
from agentrl.types.arrays import I64

_KEPT = 4096
"""Tasks of a stream that are kept behind the newest: more than are ever in flight."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceTasks:
    """The tasks of one source.

    Args:
        table: its rows.
        folder: where files that rows name start from.
        name: begins the ids; empty for the only source.
        weight: its share of the draws; None where no source has one.
        positions: the rows that are tasks.
    """

    table: SourceRows
    folder: Path
    name: str
    weight: float | None
    positions: I64

    def task(self, index: int) -> Task:
        """A task, by its place among ``positions``."""
        number = int(self.positions[index])
        where, row = read_row(self.table, number)
        return task_of(row, number, where, self.folder, self.name)

    def where(self, index: int) -> str:
        """The place of its row."""
        return self.table.where(int(self.positions[index]))


class _Tasks(Sequence[Task]):
    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self._task(number) for number in range(*index.indices(len(self)))]
        return self._task(index)

    @abstractmethod
    def _task(self, index: int) -> Task:
        """The task at an index."""


class TaskTable(_Tasks):
    """The tasks of the sources, one source behind the other; a row is read at each look."""

    def __init__(self, sources: Sequence[SourceTasks]) -> None:
        self._sources = Parts(sources, [len(source.positions) for source in sources])

    @property
    def mixture(self) -> tuple[Share, ...]:
        """The sources and their weights; empty where they have none."""
        return tuple(
            Share(len(source.positions), source.weight)
            for source in self._sources.parts
            if source.weight is not None and len(source.positions)
        )

    def __len__(self) -> int:
        return len(self._sources)

    def _task(self, index: int) -> Task:
        # A range refuses what is out of bounds and counts from the end, as a list does.
        source, own = self._sources.find(range(len(self))[index])
        return source.task(own)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def without(self, left_out: set[int]) -> TaskTable:
        """The other tasks; those at these positions are left out."""
        gone = np.zeros(len(self), dtype=bool)
        gone[list(left_out)] = True
        kept = np.split(~gone, self._sources.bounds[1:-1])
        return TaskTable(
            [
                replace(one, positions=one.positions[own])
                for one, own in zip(self._sources.parts, kept, strict=True)
            ]
        )

    def located(self, index: int) -> LocatedRow:
        """The row at an index as it is to be imitated or compared, its images in their places.

        Raises:
            DataError: images do not fit their places.
        """
        source, own = self._sources.find(index)
        where, row = read_row(source.table, int(source.positions[own]))
        return where, place_row_images(row, source.folder, where)

    def check(self, *, has_reward_model: bool) -> None:
        """Reads every task once.

        Args:
            has_reward_model: whether a task may ask for one.

        Raises:
            DataError: a row is no task, two have one id (both are named), or one asks for a reward
                model in vain.
        """
        found: dict[str, int] = {}
        for index, task in enumerate(self):
            check_style(task, self._where(index), has_reward_model=has_reward_model)
            if (first := found.setdefault(task.id, index)) != index:
                raise same_id(task, self._where(index), self._where(first))

    def _where(self, index: int) -> str:
        source, own = self._sources.find(index)
        return source.where(own)


class TaskStream(_Tasks):
    """Tasks that are read as they are drawn, in the data's order, and may have no end; where they
    end, they begin again.

    A look back beyond the newest some thousand reads the stream from its start, as a resumed run
    does. Its length is one that no run reaches.

    Args:
        tasks: gives the tasks from the first one on, in the same order each time.
    """

    def __init__(self, tasks: Callable[[], Iterator[Task]]) -> None:
        self._tasks = tasks
        self._iterator = tasks()
        self._newest = -1
        self._kept: dict[int, Task] = {}

    def __len__(self) -> int:
        return sys.maxsize

    def _task(self, index: int) -> Task:
        if index < 0:
            raise IndexError("a stream of tasks has no end to count from")
        if index <= self._newest and index not in self._kept:
            self._restart()
        while self._newest < index:
            self._newest += 1
            self._kept[self._newest] = self._next()
            self._kept.pop(self._newest - _KEPT, None)
        return self._kept[index]

    def __iter__(self) -> Iterator[Task]:
        return self._tasks()

    def _next(self) -> Task:
        task = next(self._iterator, None)
        if task is None:
            self._iterator = self._tasks()
            task = next(self._iterator)
        return task

    def _restart(self) -> None:
        self._iterator = self._tasks()
        self._newest = -1
        self._kept = {}
