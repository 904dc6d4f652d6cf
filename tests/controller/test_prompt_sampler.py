from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentrl.controller.samplers.prompt_sampler import PromptSampler
from agentrl.controller.samplers.settings import UniformSettings
from agentrl.controller.samplers.uniform import Uniform
from agentrl.errors import DataError
from agentrl.types import Task

TASKS = [Task(id=str(i)) for i in range(7)]
GOLDEN = "24365014160523"


def prompts(tasks: Sequence[Task], *, shuffle: bool) -> PromptSampler:
    uniform = Uniform(UniformSettings(), tasks, seed=3, shuffle=shuffle)
    return PromptSampler(tasks, uniform)


def test_every_epoch_holds_each_task_once_in_its_own_order() -> None:
    order = prompts(TASKS, shuffle=True)
    epochs = [
        [order.task(group_index).id for group_index in range(7 * e, 7 * e + 7)] for e in range(3)
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
