"""Draws of a task sampler in a rollout service: each gets its task once and is observed once, also
across a resume.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms import FilterResult
from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints import Checkpoints, Manifest
from agentrl.controller.state import TrainState
from agentrl.errors import DataError
from agentrl.rollouts import GroupOutcome
from agentrl.rollouts.samplers.prompt_sampler import SamplerState
from tests.controller.hand_pool import MakeWorld, World, bounds
from tests.kit.waiting import until


class Recorded:
    """Draws tasks from the end of the data on, and keeps what it is told."""

    def __init__(self, first: int = 99) -> None:
        self.following = first
        self.seen: list[tuple[int, list[float | None]]] = []

    def next(self) -> int:
        self.following -= 1
        return self.following + 1

    def observe(self, task_index: int, outcome: GroupOutcome) -> None:
        self.seen.append((task_index, [one.reward for one in outcome.group.finished]))

    def state(self) -> Any:
        return {"following": self.following}

    def load(self, state: Any) -> None:
        self.following = state["following"]


def test_groups_play_the_tasks_that_the_sampler_gives(world: MakeWorld) -> None:
    w = world(bounds(3, 1), sampler=Recorded())
    w.pool.wait_for(3)
    assert [w.pool.open["", draw].task.id for draw in (0, 1, 2)] == ["99", "98", "97"]


def test_every_end_of_a_group_is_one_observation(world: MakeWorld) -> None:
    sampler = Recorded()
    filtered = FilterResult(False, "zero_variance")
    w = world(
        bounds(2, 2, max_resample_ratio=2.0),
        sampler=sampler,
        keep=lambda group: filtered if group.group_index == 0 else FilterResult(True),
    )
    w.pool.wait_for(2)
    w.pool.finish(0, reward=0.5)  # no variance: not trained, and an observation
    until(lambda: w.pool.group_indices() == [1, 2])
    w.pool.finish(1, ["failed", "failed"])
    until(lambda: w.pool.group_indices() == [2, 3])
    w.pool.finish(2, ["failed"], reward=1.0)
    w.pool.finish(3, reward=0.0)
    assert w.next_groups().group_indices() == [2, 3]
    assert sampler.seen == [(99, [0.5, 0.5]), (98, []), (97, [1.0]), (96, [0.0, 0.0])]


def test_observations_arrive_late_where_rollouts_run_ahead(world: MakeWorld) -> None:
    sampler = Recorded()
    w = world(bounds(1, 1, max_staleness=2), sampler=sampler)
    w.pool.wait_for(3)
    w.pool.finish(2)
    w.next_groups().get()
    w.service.mark_trained([], 1)
    w.service.make_room({"main": 0})
    w.pool.wait_for(3)
    w.pool.finish(0)
    until(lambda: len(sampler.seen) == 2)
    assert [index for index, _ in sampler.seen] == [97, 99]


def resumed(
    w: World, world: MakeWorld, tmp_path: Path, again: tuple[int, ...] = ()
) -> World:
    """The same from a checkpoint on the disk, with a sampler of the same kind."""
    snapshot = w.service.snapshot(again=again)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=1)
    checkpoints.commit(checkpoints.begin(1), Manifest("rl", TrainState(1), snapshot))
    latest = checkpoints.latest()
    assert latest is not None
    stage = w.service.stage
    w.service.close()
    return world(stage, sampler=Recorded(), restored=latest[1].rollouts)


def test_a_resume_plays_the_same_tasks_and_observes_nothing_twice(
    world: MakeWorld, tmp_path: Path
) -> None:
    w = world(bounds(2, 1, max_staleness=1), sampler=Recorded())
    w.pool.wait_for(4)
    w.pool.finish(1)
    until(lambda: w.ledger.counts().get("buffered") == 1)  # it waits to be trained

    later = resumed(w, world, tmp_path)
    later.pool.wait_for(3)
    tasks = {draw: later.pool.open["", draw].task.id for draw in later.pool.group_indices()}
    assert tasks == {0: "99", 2: "97", 3: "96"}
    for draw in (0, 2, 3):
        later.pool.finish(draw)
    later.next_groups().get()
    sampler: Any = later.service.sampler.sampler
    until(lambda: len(sampler.seen) == 3)
    assert sorted(index for index, _ in sampler.seen) == [96, 97, 99]
    assert sampler.following == 95


def test_draws_that_are_played_once_more_keep_their_tasks_and_are_observed_once(
    world: MakeWorld, tmp_path: Path
) -> None:
    w = world(bounds(2, 1), sampler=Recorded())
    batch = w.next_groups()
    for draw in w.pool.wait_for(2):
        w.pool.finish(draw)
    batch.get()

    later = resumed(w, world, tmp_path, again=(0, 1))  # as when too many episodes failed
    later.pool.wait_for(2)
    assert [later.pool.open["", draw].task.id for draw in (0, 1)] == ["99", "98"]
    taken = later.next_groups()
    for draw in (0, 1):
        later.pool.finish(draw)
    later.service.mark_trained(taken.get(), 1)
    sampler: Any = later.service.sampler.sampler
    assert sampler.seen == []
    # and once they are trained, nothing is kept of them
    assert later.service.snapshot().sampler == SamplerState({"following": 97})


def test_a_group_that_was_being_cancelled_at_the_checkpoint_is_observed_as_such(
    world: MakeWorld, tmp_path: Path
) -> None:
    w = world(bounds(2, 1), sampler=Recorded())
    w.pool.wait_for(2)
    snapshot = w.service.snapshot()
    later = world(
        bounds(2, 1), sampler=Recorded(), restored=replace(snapshot, outstanding=(0,))
    )
    later.pool.wait_for(2)
    sampler: Any = later.service.sampler.sampler
    assert sampler.seen == [(98, [])]


def test_what_is_trained_is_forgotten(world: MakeWorld) -> None:
    w = world(bounds(2, 1), sampler=Recorded())
    for step in (1, 2, 3):
        batch = w.next_groups(step)
        for draw in w.pool.wait_for(2):
            w.pool.finish(draw)
        w.service.mark_trained(batch.get(), step)
        w.service.make_room({"main": 0})
    w.pool.wait_for(2)
    assert w.service.snapshot().sampler.tasks == ((6, 93), (7, 92))


class Learning(Recorded):
    """What it draws depends on all that it was told, in order."""

    def next(self) -> int:
        return hash((self.following, *(index for index, _ in self.seen))) % 100

    def state(self) -> Any:
        return {"seen": [[index, rewards] for index, rewards in self.seen]}

    def load(self, state: Any) -> None:
        self.seen = [(index, rewards) for index, rewards in state["seen"]]


def finish_all(w: World, batch: Any, rng: random.Random, stop_after: int = 99) -> None:
    while not batch.done and stop_after:
        if draws := w.pool.group_indices():
            w.pool.finish(rng.choice(draws))
            stop_after -= 1
        time.sleep(0.001)


@pytest.mark.parametrize("seed", range(4))
def test_in_draw_order_what_is_drawn_does_not_depend_on_what_finishes_first(
    world: MakeWorld, tmp_path: Path, seed: int
) -> None:
    """Also where a batch is interrupted: half of its groups were refilled already."""

    def begun(sampler: Learning, restored: RolloutState) -> World:
        return world(
            bounds(4, 1, max_resample_ratio=3.0, in_draw_order=True),
            sampler=sampler,
            keep=lambda group: FilterResult(group.group_index % 3 != 0, "third"),
            restored=restored,
        )

    def tasks_of(w: World, steps: range) -> list[list[str]]:
        tasks = []
        for step in steps:
            batch = w.next_groups(step)
            finish_all(w, batch, rng)
            tasks.append([group.task.id for group in batch.get()])
            w.service.mark_trained(batch.get(), step)
            w.service.make_room({"main": 0})
        return tasks

    rng = random.Random(0)
    expected = tasks_of(begun(Learning(), RolloutState(0, (), 0, 0)), range(1, 4))

    rng = random.Random(seed)
    w = begun(Learning(), RolloutState(0, (), 0, 0))
    found = tasks_of(w, range(1, 2))
    open_batch = w.next_groups(2)
    before = w.ledger.counts().get("trained", 0)
    finish_all(w, open_batch, rng, stop_after=3)
    until(
        lambda: (
            w.ledger.counts().total() - w.ledger.counts().get("running", 0) >= before + 3
        )
    )
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    snapshot = w.service.snapshot()
    assert snapshot.unobserved
    checkpoints.commit(checkpoints.begin(1), Manifest("rl", TrainState(1), snapshot))
    latest = checkpoints.latest()
    assert latest is not None
    later = begun(Learning(), latest[1].rollouts)
    found += tasks_of(later, range(2, 4))
    finish_all(w, open_batch, rng)
    open_batch.get()
    assert found == expected


def raises(*_: Any) -> Any:
    raise ValueError("no more")


def ends(*_: Any) -> Any:
    raise StopIteration


@pytest.mark.parametrize(
    ("method", "behaviour", "told"),
    [
        (
            "next",
            lambda: None,
            r"next\(\) must return the index of a task, from 0 to 99, and always",
        ),
        ("next", lambda: 100, r"next\(\) must return .*, got 100, which is out of range"),
        ("next", lambda: -1, ".*got -1, which is out of range"),
        ("next", lambda: "7", ".*got '7' of type str"),
        (
            "next",
            raises,
            r"next\(\) raised ValueError: no more \(.*test_sampled_draws.py:\d+\)",
        ),
        ("next", ends, r"next\(\) ended \(StopIteration\), but training goes on"),
        ("observe", raises, r"observe\(\) raised ValueError: no more"),
    ],
    ids=["nothing", "too_large", "negative", "no_index", "raises", "ends", "observe"],
)
def test_a_broken_sampler_is_named_by_its_setting(
    world: MakeWorld, method: str, behaviour: Callable[..., Any], told: str
) -> None:
    sampler = Recorded()
    setattr(sampler, method, behaviour)
    w = world(bounds(1, 1), sampler=sampler)
    batch = w.next_groups()
    if method == "observe":
        w.pool.wait_for(1)
        w.pool.finish(0)
    with pytest.raises(DataError, match=r"^SamplerSettings\.name='.*': " + told) as caught:
        batch.get()
    assert caught.value.fields == ("SamplerSettings.name",)


@pytest.mark.parametrize("state", [None, {1: 2}, (1, 2), {"a": float("nan")}, {"a": {1}}])
def test_a_state_that_json_does_not_give_back_is_refused_at_once(
    world: MakeWorld, state: Any
) -> None:
    sampler = Recorded()
    sampler.state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(
        DataError, match=r"state\(\) must return what JSON gives back as it was"
    ):
        world(bounds(1, 1), sampler=sampler)


def test_a_state_that_cannot_be_loaded_is_named(world: MakeWorld) -> None:
    restored = RolloutState(4, (), 0, 0, sampler=SamplerState({"other": 1}))
    with pytest.raises(DataError, match=r"load\(\) raised KeyError: 'following'"):
        world(bounds(1, 1), sampler=Recorded(), restored=restored)
