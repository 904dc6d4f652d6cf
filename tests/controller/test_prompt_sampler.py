from __future__ import annotations

import pytest

from agentrl.controller.prompt_sampler import PromptSampler
from agentrl.errors import DataError
from agentrl.types import Task

TASKS = [Task(id=str(i)) for i in range(7)]


def test_every_epoch_holds_each_task_once_in_its_own_order() -> None:
    order = PromptSampler(TASKS, seed=3, shuffle=True)
    epochs = [
        [order.task(group_index).id for group_index in range(7 * e, 7 * e + 7)] for e in range(3)
    ]
    assert all(sorted(epoch) == [str(i) for i in range(7)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_draw_is_the_same_task_whatever_was_asked_before() -> None:
    forward, fresh = (
        PromptSampler(TASKS, seed=3, shuffle=True),
        PromptSampler(TASKS, seed=3, shuffle=True),
    )
    expected = [forward.task(group_index).id for group_index in range(21)]
    assert [fresh.task(group_index).id for group_index in (20, 3, 11)] == [
        expected[20],
        expected[3],
        expected[11],
    ]


def test_without_shuffling_it_is_the_order_of_the_data() -> None:
    order = PromptSampler(TASKS, seed=3, shuffle=False)
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
        PromptSampler([], seed=0, shuffle=True)


def test_ids_must_be_unique() -> None:
    with pytest.raises(DataError, match="2 tasks but 1 different ids"):
        PromptSampler([Task(id="a"), Task(id="a")], seed=0, shuffle=True)
