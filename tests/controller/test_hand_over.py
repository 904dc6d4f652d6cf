"""What a rollout service leaves to the next one of its pool, where ranks are lost."""

from __future__ import annotations

import pytest

from agentrl.controller.rollout_service import HandOver
from agentrl.controller.state import TrainState
from agentrl.errors import RankLostError
from agentrl.rollouts import GroupRequest
from tests.controller.hand_pool import TASKS, Future, MakeWorld, World, bounds
from tests.kit.waiting import until

TWO_AHEAD = bounds(2, 1, max_staleness=1)


def in_training(world: MakeWorld) -> World:
    """Groups 0 and 1 are in training, 2 waits, and 3 runs."""
    w = world(TWO_AHEAD)
    w.pool.wait_for(4)
    for group_index in (0, 1):
        w.pool.finish(group_index)
    assert w.next_groups().group_indices() == [0, 1]
    w.pool.finish(2)
    until(lambda: w.service.waiting() == {2})
    return w


def test_what_plays_with_the_checkpoints_weights_goes_on(world: MakeWorld) -> None:
    w = in_training(world)
    left = w.service.hand_over(0)
    assert left is not None
    assert left.state is not None
    assert [group.group_index for group in left.state.groups] == [0, 1, 2]
    assert dict(left.playing) == {3: {"main": 0}}
    assert (left.state.outstanding, left.state.next_group_index) == ((), 4)
    assert (w.pool.cancelled, w.pool.group_indices()) == ([], [3])


@pytest.mark.parametrize(("step", "plays_on"), [(7, True), (0, False)])
def test_what_may_have_other_weights_is_cancelled(
    world: MakeWorld, step: int, plays_on: bool
) -> None:
    w = in_training(world)
    assert w.service.hand_over(step, plays_on=plays_on) == HandOver(step)
    assert (w.pool.cancelled, w.pool.group_indices()) == ([3], [])


def test_a_publish_that_broke_off_keeps_nothing(world: MakeWorld) -> None:
    w = in_training(world)

    def lost(*_: object) -> None:
        raise RankLostError("the worker of rank 0 died")

    w.service.send_weights = lost
    with pytest.raises(RankLostError):
        w.service.publish(TrainState(step=1), changed=["main"])
    assert w.service.hand_over(0) == HandOver(0)


def test_an_evaluation_that_a_loss_ends_leaves_nothing_behind(world: MakeWorld) -> None:
    lost: list[RankLostError] = []

    def look() -> None:
        if lost:
            raise lost[0]

    w = world(TWO_AHEAD, on_wait=look)
    w.pool.wait_for(4)
    asked = [GroupRequest(n, TASKS[n], 1, "eval", "held out") for n in range(3)]
    evaluation = Future(lambda: w.service.evaluate(asked))
    w.pool.wait_for(3, "held out")
    w.pool.finish(1, label="held out")
    until(lambda: w.service._evaluating["held out"])
    lost.append(RankLostError("the worker of rank 0 died"))
    with pytest.raises(RankLostError):
        evaluation.get()
    assert sorted(w.pool.cancelled) == [0, 2]
    left = w.service.hand_over(0)
    assert left is not None
    assert sorted(left.playing) == [0, 1, 2, 3]
    assert w.pool.group_indices("held out") == []
    assert not w.service._given_up
