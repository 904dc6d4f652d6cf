"""Which side waits, by a clock that the tests turn: the trainer for rollouts, or these for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from agentrl.controller.state import TrainState
from agentrl.controller.threads import THREADS
from agentrl.engines import PauseMode
from agentrl.metrics import RolloutRates, describe
from agentrl.rollouts import GroupRequest
from tests.controller.hand_pool import TASKS, Future, MakeWorld, World, bounds
from tests.controller.test_async_service import finish
from tests.kit.waiting import until


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 0.0
    during_publish: float = 0.0
    published: list[int] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def send_weights(self, policy: str, version: int, mode: PauseMode) -> None:
        self.published.append(version)
        self.now += self.during_publish


def step(w: World, clock: Clock, *, done: int, update_s: float) -> TrainState:
    """A batch is taken, trained and published; the state that it left."""
    w.next_groups(done + 1).get()
    clock.now += update_s
    return w.service.publish(
        TrainState(step=done, versions={"main": done}), changed=["main"]
    )


def rates(w: World) -> Mapping[str, float]:
    return w.service.take_rates()


def started(world: MakeWorld, clock: Clock, batch_groups: int, **settings: object) -> World:
    threads = replace(THREADS, now=clock)
    w = world(bounds(batch_groups, 1, **settings), threads=threads)  # type: ignore[arg-type]
    w.service.send_weights = clock.send_weights
    return w


def test_in_sync_the_rollouts_wait_while_a_batch_is_trained_and_published(
    world: MakeWorld,
) -> None:
    clock = Clock(during_publish=2.0)
    w = started(world, clock, 2)
    w.pool.wait_for(2)
    clock.now = 10.0
    finish(w, 0, 0, 0, 0)
    finish(w, 1, 0)
    step(w, clock, done=0, update_s=3.0)
    w.pool.wait_for(2)
    clock.now += 5.0
    # ten seconds of episodes, three of an update, two of a publish, five of the next episodes
    assert rates(w) == {"perf/rollout_tokens_per_s": 4 / 20, "time/idle_frac": 5 / 20}
    clock.now += 4.0
    assert rates(w) == {"perf/rollout_tokens_per_s": 0.0, "time/idle_frac": 0.0}


def test_workers_of_a_pool_of_their_own_are_told_by_its_name(world: MakeWorld) -> None:
    placement = {"pools": {"players": {}}, "rollout": "players", "rollout_workers": 1}
    clock = Clock()
    w = world(
        bounds(2, 1).replace(placement=placement), threads=replace(THREADS, now=clock)
    )
    w.pool.wait_for(2)
    clock.now += 5.0
    assert rates(w)["time/idle_frac/players"] == rates(w)["time/idle_frac"] == 0.0


@pytest.mark.parametrize("pause", ["drain", "retract"])  # one_step_off, async
def test_ahead_the_rollouts_wait_for_the_publish_alone_while_they_have_room(
    world: MakeWorld, pause: str
) -> None:
    clock = Clock(during_publish=2.0)
    w = started(world, clock, 1, max_staleness=1, pause_mode=pause)
    w.pool.wait_for(2)
    clock.now = 10.0
    finish(w, 0, 0)
    step(w, clock, done=0, update_s=8.0)
    assert rates(w) == {"perf/rollout_tokens_per_s": 1 / 20, "time/idle_frac": 2 / 20}


def test_ahead_the_rollouts_wait_once_the_admission_has_no_room(world: MakeWorld) -> None:
    clock = Clock()
    w = started(world, clock, 1, max_staleness=1)
    w.pool.wait_for(2)
    finish(w, 0, 0)
    w.next_groups(1).get()
    clock.now = 6.0
    finish(w, 1, 0)
    until(lambda: len(w.taken_in) == 2)
    # one batch is trained and the next one waits for it
    clock.now = 8.0
    assert rates(w) == {"perf/rollout_tokens_per_s": 2 / 8, "time/idle_frac": 2 / 8}


def test_an_evaluation_is_no_wait_and_its_tokens_are_none_of_training(
    world: MakeWorld,
) -> None:
    clock = Clock()
    w = started(world, clock, 1, last_step=1)
    w.pool.wait_for(1)
    finish(w, 0, 0)
    w.next_groups(1).get()
    clock.now = 1.0
    requests = [GroupRequest(0, TASKS[0], 1, "eval", "held")]
    evaluated = Future(lambda: w.service.evaluate(requests))
    w.pool.wait_for(1, "held")
    clock.now = 4.0
    w.pool.finish(0, label="held")
    evaluated.get()
    assert rates(w) == {"perf/rollout_tokens_per_s": 1 / 4, "time/idle_frac": 1 / 4}


def test_rates_of_no_time_at_all_are_nothing() -> None:
    clock = Clock()
    measured = RolloutRates(clock)
    measured.add(5)
    assert set(measured.take_metrics().values()) == {0.0}


def test_each_has_a_meaning() -> None:
    for name in ("perf/rollout_tokens_per_s", "time/wait_rollout_s", "time/idle_frac"):
        assert describe(name) is not None
