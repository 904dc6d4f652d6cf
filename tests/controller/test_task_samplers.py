"""The built-in task samplers: what they draw, what they learn, and how they go on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ConfigError
from agentrl.rollouts import GroupOutcome, GroupRequest, cancelled_outcome
from agentrl.rollouts.samplers.catalog import SAMPLERS, make_sampler
from agentrl.rollouts.samplers.task_sampler import TaskSampler
from agentrl.types import Status, Task, Trajectory, TrajectoryGroup
from tests.controller.hand_pool import outcome

TASKS = [Task(str(n)) for n in range(40)]


def made(
    name: str, tasks: Sequence[Task] = TASKS, seed: int = 0, **settings: Any
) -> TaskSampler:
    sampler: TaskSampler = make_sampler(
        name, settings, tasks, seed=seed, shuffle=True, base_dir=Path()
    )
    return sampler


def group(task_index: int, rewards: Sequence[float]) -> GroupOutcome:
    """A group of finished rollouts of these rewards."""
    request = GroupRequest(0, TASKS[task_index], len(rewards))
    played = outcome(request).group
    given = iter(rewards)

    def rewarded(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=next(given))

    return GroupOutcome(request, played.with_rewarded(rewarded))


def play(
    sampler: TaskSampler, rates: Sequence[float], draws: int, *, late: int = 8
) -> list[int]:
    """Draws of a policy that solves each task at its rate; each observed ``late`` draws later."""
    generator = np.random.default_rng(5)
    waiting: list[int] = []
    drawn = []
    for _ in range(draws):
        waiting.append(sampler.next())
        drawn.append(waiting[-1])
        if len(waiting) > late:
            index = waiting.pop(0)
            sampler.observe(
                index, group(index, (generator.random(4) < rates[index]).tolist())
            )
    for index in waiting:
        sampler.observe(index, group(index, (generator.random(4) < rates[index]).tolist()))
    return drawn


# 30 tasks that are always or never solved, and 10 of which the policy solves a half
RATES = [0.0] * 15 + [0.5] * 10 + [1.0] * 15
INFORMATIVE = frozenset(range(15, 25))


@pytest.mark.parametrize("name", ["difficulty_band", "signal"])
def test_draws_go_to_the_tasks_that_can_be_learned(name: str) -> None:
    counts = Counter(index in INFORMATIVE for index in play(made(name), RATES, 400)[200:])
    # a uniform order gives them a quarter of the draws
    assert counts[True] / 200 > 0.75


def test_exploring_finds_the_tasks_that_came_into_the_band() -> None:
    shares = []
    for explore in (0.0, 0.3):
        sampler = made("difficulty_band", explore=explore)
        play(sampler, RATES, 200)
        later = play(sampler, [0.0] * 15 + [0.5] * 25, 300)
        shares.append(sum(index >= 25 for index in later[:150]) / 150)
    assert shares[0] < 0.2 < 0.3 < shares[1]


def test_without_a_task_in_the_band_the_nearest_are_drawn() -> None:
    sampler = made("difficulty_band", TASKS[:3], low=0.4, high=0.6, explore=0.0)
    for index, rewards in enumerate([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]):
        while (drawn := sampler.next()) != index:
            sampler.observe(drawn, cancelled_outcome(GroupRequest(0, TASKS[drawn], 0)))
        sampler.observe(index, group(index, rewards))
    assert [sampler.next()] == [1]
    # it runs now: of the others neither is nearer
    assert sampler.next() in (0, 2)


def test_the_window_is_of_the_newest_groups() -> None:
    sampler = made("difficulty_band", TASKS[:1], window=2)
    for rewards in ([1, 1], [0, 0], [0, 1]):
        sampler.next()
        sampler.observe(0, group(0, rewards))
    state: Any = sampler.state()
    assert state["recent"] == [[0, [[0.0, 2], [1.0, 2]]]]


def test_a_task_without_signal_is_tried_again() -> None:
    drawn = play(made("signal", TASKS[:4]), [0.0, 0.0, 0.0, 0.5], 400, late=1)
    assert min(Counter(drawn).values()) > 5
    assert Counter(drawn)[3] > 150  # of the 200 at most that its group does not run at


def test_a_group_counts_where_rewards_differ_and_not_where_too_few_finished() -> None:
    sampler = made("signal", TASKS[:3], decay=0.5)
    for index, rewards in [(0, [1, 0]), (0, [1, 1]), (1, [1]), (1, [])]:
        sampler.next()
        sampler.observe(index, group(index, rewards))
    state: Any = sampler.state()
    assert state["counts"] == [[0, 0.5, 1.0]]


@pytest.mark.parametrize("name", ["difficulty_band", "signal"])
def test_a_task_whose_group_runs_is_passed_over_while_there_are_others(name: str) -> None:
    sampler = made(name)
    assert sorted(sampler.next() for _ in TASKS) == list(range(40))
    assert 0 <= sampler.next() < 40  # and then any
    sampler.observe(7, cancelled_outcome(GroupRequest(0, TASKS[7], 2)))


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_loaded_goes_on_as_if_it_had_never_stopped(name: str) -> None:
    sampler = made(name)
    play(sampler, RATES, 60)
    runs = [sampler.next() for _ in range(3)]
    again = made(name)
    again.load(json.loads(json.dumps(sampler.state())))
    for index in runs:
        for own in (sampler, again):
            own.observe(index, group(index, [1.0, 0.0]))
    assert play(again, RATES, 60) == play(sampler, RATES, 60)
    assert again.state() == sampler.state()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_decides(name: str) -> None:
    first, same, other = (play(made(name, seed=seed), RATES, 80) for seed in (1, 1, 2))
    assert first == same != other


def test_an_unknown_sampler_is_refused_with_the_ones_that_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"'signl' is unknown; did you mean 'signal'.; choose one"
    ):
        made("signl")


def test_failed_rollouts_are_no_observations() -> None:
    sampler = made("difficulty_band", TASKS[:1])
    sampler.next()
    request = GroupRequest(0, TASKS[0], 2)
    failed = tuple(
        Trajectory(
            task=TASKS[0],
            group_index=0,
            rollout_index=n,
            attempt=0,
            purpose="train",
            turns=(),
            status=Status("failed", "engine"),
            reward=None,
        )
        for n in range(2)
    )
    sampler.observe(0, GroupOutcome(request, TrajectoryGroup(0, TASKS[0], failed)))
    state: Any = sampler.state()
    assert state == {"drawn": 1, "in_flight": [], "recent": []}
