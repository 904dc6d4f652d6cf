from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.errors import DataError
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.rollouts.samplers.prompt_sampler import PromptSampler
from agentrl.rollouts.samplers.settings import UniformSettings
from agentrl.rollouts.samplers.uniform import Uniform
from agentrl.types import Status, Task, Trajectory, TrajectoryGroup, Turn

TASKS = [Task(id=str(i)) for i in range(7)]
GOLDEN = "24365014160523"


def prompts(tasks: Sequence[Task], *, shuffle: bool) -> PromptSampler:
    uniform = Uniform(UniformSettings(), tasks, seed=3, shuffle=shuffle)
    return PromptSampler(tasks, uniform)


def test_every_epoch_holds_each_task_once_in_its_own_order() -> None:
    order = prompts(TASKS, shuffle=True)
    epochs = [
        [order.task(group_index).id for group_index in range(7 * e, 7 * e + 7)]
        for e in range(3)
    ]
    assert all(sorted(epoch) == [str(i) for i in range(7)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_of_a_seed_is_the_one_that_it_always_was() -> None:
    order = prompts(TASKS, shuffle=True)
    assert "".join(order.task(group_index).id for group_index in range(14)) == GOLDEN


def test_without_shuffling_it_is_the_order_of_the_data() -> None:
    order = prompts(TASKS, shuffle=False)
    assert [order.task(group_index).id for group_index in range(9)] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "0",
        "1",
    ]


def test_an_empty_data_set_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"PromptSampler\.tasks holds no task"):
        prompts([], shuffle=True)


def test_ids_must_be_unique() -> None:
    with pytest.raises(DataError, match="2 tasks but 1 different ids"):
        prompts([Task(id="a"), Task(id="a")], shuffle=True)


class Given:
    """A task sampler that returns what it is given."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def next(self) -> Any:
        if isinstance(self.found, type):
            raise self.found("no idea")
        return self.found

    def observe(self, task_index: int, outcome: object) -> None: ...

    def state(self) -> Any:
        return self.found

    def load(self, state: object) -> None: ...


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            None,
            r"must return the index of a task, from 0 to 6, and always .* got nothing \(None\)",
        ),
        (7, "must return the index of a task, from 0 to 6, got 7, which is out of range"),
        (-1, "from 0 to 6, got -1, which is out of range"),
        ("3", "from 0 to 6, got '3' of type str"),
        (3.0, r"from 0 to 6, got 3\.0 of type float"),
        (
            StopIteration,
            r"ended \(StopIteration\), but training goes on; start over instead",
        ),
        (ZeroDivisionError, r"raised ZeroDivisionError: no idea \(.*:\d+\); correct it"),
    ],
)
def test_a_sampler_that_gives_no_task_is_named(found: Any, told: str) -> None:
    sampler = PromptSampler(TASKS, Given(found), name="own.py:f")
    with pytest.raises(
        DataError, match=rf"SamplerSettings\.name='own\.py:f': next\(\) .*{told}"
    ):
        sampler.task(0)


class Spoils(Given):
    """A task sampler that changes what it is told of."""

    def observe(self, task_index: int, outcome: Any) -> None:
        for trajectory in outcome.group.trajectories:
            trajectory.task.info["n"].clear()
            trajectory.turns[0].message["content"] = "spoilt"


def test_what_a_sampler_does_to_an_outcome_stays_its_own() -> None:
    turn = Turn(0, None, (), (), "said", {"role": "assistant", "content": "said"})
    task = Task("0", info={"n": [1]})
    one = Trajectory(task, 0, 0, 0, "train", (turn,), Status("terminated"), reward=1.0)
    sampler = PromptSampler(TASKS, Spoils(0), name="own.py:f")
    sampler.task(0)
    group = TrajectoryGroup(0, task, (one,))
    sampler.observe(GroupOutcome(GroupRequest(0, task, 1), group))
    assert (task.info, turn.message["content"]) == ({"n": [1]}, "said")


@pytest.mark.parametrize("state", [None, {1, 2}, {"a": float("nan")}, {1: "a"}, (1,)])
def test_a_state_that_no_checkpoint_can_keep_is_named(state: Any) -> None:
    sampler = PromptSampler(TASKS, Given(state), name="own.py:f")
    with pytest.raises(DataError, match=r"state\(\) must return what JSON gives back"):
        sampler.state()
