"""Prompt sampler: gives each draw its task, once, and tells the task sampler what came of it.

- A draw keeps its task for good: played again after a resume, it is the same task.
- A draw is observed once, also where a resume plays it again.
- What the task sampler does wrong is told as an error of ``data.sampler``.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from agentrl.errors import DataError
from agentrl.rollouts import GroupOutcome, GroupRequest, cancelled_outcome
from agentrl.rollouts.samplers.task_sampler import TaskSampler
from agentrl.types import Task
from agentrl.types.user_code.place import described
from agentrl.types.user_code.values import private_copy, shown
from agentrl.types.user_code.wall import wall


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What a checkpoint knows of the tasks of draws; JSON.

    Args:
        own: the task sampler's own state; None before its first draw.
        tasks: draw and task index of each draw that may be played again, or is not observed yet.
        observed: those of them that were observed.
    """

    own: Any = None
    tasks: tuple[tuple[int, int], ...] = ()
    observed: tuple[int, ...] = ()

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> SamplerState:
        """From JSON."""
        tasks = tuple((draw, index) for draw, index in record["tasks"])
        return cls(record["own"], tasks, tuple(record["observed"]))


@dataclass(eq=False)
class PromptSampler:
    """The tasks of a stage's draws. It is called under the rollout service's lock.

    Args:
        tasks: the data set.
        sampler: chooses the task of a new draw.
        name: of the sampler, as configured.
        first_group_index: draw of the stage's first task; earlier ones belong to an earlier stage.
        check_ids: whether to read every task once and compare their ids; false for data that did.

    Raises:
        DataError: no task, or two tasks of one id.
    """

    tasks: Sequence[Task]
    sampler: TaskSampler
    _: KW_ONLY
    name: str = "uniform"
    first_group_index: int = 0
    check_ids: bool = True

    def __post_init__(self) -> None:
        if not self.tasks:
            raise DataError(
                "PromptSampler.tasks holds no task; point it at a data set with at least one"
            )
        num_ids = (
            len({task.id for task in self.tasks}) if self.check_ids else len(self.tasks)
        )
        if num_ids != len(self.tasks):
            raise DataError(
                f"PromptSampler.tasks holds {len(self.tasks)} tasks but {num_ids} different ids; "
                "ids must be unique"
            )
        self._indices: dict[int, int] = {}  # of each draw that is not released
        self._observed: set[int] = set()  # of them

    def restore(self, state: SamplerState, *, going_on: Collection[int]) -> None:
        """Goes on from a checkpoint, or begins.

        Args:
            state: of the checkpoint.
            going_on: draws that are played again, that wait to be trained, or to be observed.
                Others come to no end any more, and are observed as cancelled.

        Raises:
            DataError: the sampler raised, or its state is not what JSON gives back.
        """
        self._indices = dict(state.tasks)
        self._observed = set(state.observed)
        if state.own is None:
            self._own_state()  # a fault of it is better known now than at the first checkpoint
        else:
            self._call("load", self.sampler.load, state.own)
        for draw in sorted(self._indices.keys() - set(going_on)):
            self.observe(cancelled_outcome(GroupRequest(draw, self.task(draw), 0)))
            self.release([draw])

    def task(self, group_index: int) -> Task:
        """The task of a draw.

        Raises:
            DataError: the sampler gives none.
        """
        if group_index not in self._indices:
            self._indices[group_index] = self._next()
        return self.tasks[self._indices[group_index]]

    def observe(self, outcome: GroupOutcome) -> None:
        """A draw's group has come to its end.

        Raises:
            DataError: the sampler raised.
        """
        draw = outcome.request.group_index
        if draw not in self._observed:
            self._observed.add(draw)
            if ":" in self.name:  # a user's own, which may change what it is given
                seen = {
                    name: getattr(outcome, name) for name in ("group", "retried", "ended")
                }
                outcome = replace(outcome, **private_copy(seen))
            self._call("observe", self.sampler.observe, self._indices[draw], outcome)

    def release(self, group_indices: Collection[int]) -> None:
        """These draws are never played again."""
        for draw in group_indices:
            self._indices.pop(draw, None)
        self._observed.difference_update(group_indices)

    def state(self) -> SamplerState:
        """What a checkpoint must know.

        Raises:
            DataError: the sampler's own state is not what JSON gives back.
        """
        tasks = tuple(sorted(self._indices.items()))
        return SamplerState(self._own_state(), tasks, tuple(sorted(self._observed)))

    def _next(self) -> int:
        found = self._call("next", self.sampler.next)
        rule = f"must return the index of a task, from 0 to {len(self.tasks) - 1}"
        if found is None:
            raise self._broken(
                "next", f"{rule}, and always has one more, got nothing (None)"
            )
        try:
            index = operator.index(found)
        except TypeError as error:
            raise self._broken(
                "next", f"{rule}, got {found!r} of type {type(found).__name__}"
            ) from error
        if not 0 <= index < len(self.tasks):
            raise self._broken("next", f"{rule}, got {index}, which is out of range")
        return index

    def _own_state(self) -> Any:
        state = self._call("state", self.sampler.state)
        rule = (
            "must return what JSON gives back as it was (lists, mappings with texts as keys, "
            "numbers, texts; {} for none), so that a checkpoint can keep it"
        )
        try:
            same = (
                state is not None
                and json.loads(json.dumps(state, allow_nan=False)) == state
            )
        except (TypeError, ValueError) as error:
            raise self._broken("state", f"{rule}: {error}") from error
        if not same:
            raise self._broken("state", f"{rule}, got {shown(state)}")
        return state

    def _call(self, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        def failed(error: BaseException) -> DataError:
            if isinstance(error, StopIteration):
                rule = "ended (StopIteration), but training goes on; start over instead"
                return self._broken(method, rule)
            return self._broken(method, f"raised {described(error)}; correct it")

        with wall(failed, passes=()):
            return function(*arguments)

    def _broken(self, method: str, what: str) -> DataError:
        setting = "SamplerSettings.name"
        return DataError(f"{setting}={self.name!r}: {method}() {what}", fields=[setting])
