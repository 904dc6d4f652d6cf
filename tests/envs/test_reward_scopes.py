"""Rewards of turns, of groups, and metrics of weight 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrl.envs import EpisodeView, Rubric, Score, group_rewards, turn_rewards
from agentrl.errors import RewardError
from agentrl.rollouts.group_scores import with_group_scores
from agentrl.types import Status, Task, Trajectory
from tests.kit.episodes import trajectory, turn


def episode(index: int, *texts: str, reward: float | None = 0.5) -> Trajectory:
    turns = (turn(n, text=text) for n, text in enumerate(texts))
    status = Status("terminated") if reward is not None else Status("failed", "env", "lost")
    rewards = {} if reward is None else {"base": reward}
    return trajectory(
        *turns,
        task=Task("t-1"),
        rollout=index,
        status=status,
        reward=reward,
        rewards=rewards,
    )


@turn_rewards
def lengths(view: EpisodeView) -> list[float]:
    return [float(len(one.text)) for one in view.turns]


@group_rewards
def shorter(views: Sequence[EpisodeView]) -> list[Score]:
    own = [len(view.final_text) for view in views]
    return [Score(float(n == min(own)), {"length": n}) for n in own]


async def test_a_part_of_turns_is_their_sum() -> None:
    view = EpisodeView.of(episode(0, "ab", "abc"))
    assert await Rubric([lengths]).scores(view) == {"lengths": Score(5.0, turns=(2.0, 3.0))}


async def test_a_part_of_a_group_is_added_to_each_finished_episode() -> None:
    played = [episode(0, "ab"), episode(1, "abc"), episode(2, "a", reward=None)]
    first, second, third = await with_group_scores(Rubric([(shorter, 2.0)]), played)
    # 0.5 and twice the part; the failed one, though shorter, is not compared
    assert (first.reward, second.reward) == (2.5, 0.5)
    assert (first.rewards, first.reasons) == (
        {"base": 0.5, "shorter": 1.0},
        {"shorter": {"length": 2}},
    )
    assert third is played[2]


def given(value: Any, mark: Callable[[Any], Any]) -> Any:
    def odd(argument: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return mark(odd)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (OSError("no disk"), r"raised OSError: no disk \(.*test_reward_scopes\.py:\d+\)"),
        (
            1.0,
            r"must give a list of 2 numbers, one for each \w+, got 1\.0 \(.*scopes\.py:\d+\)",
        ),
        ("ab", "must give a list of 2 numbers, one for each .*, got 'ab'"),
        (
            {0: 0.5, 1: 0.5},
            r"must give a list of 2 numbers, one for each .*, got \{0: 0\.5",
        ),
        ({0.5, 1.0}, "must give a list of 2 numbers, one for each"),
        ([1.0], "must give a list of 2 numbers, one for each .*, got 1"),
        ([1.0, None], r"must be a finite number, got None; .*test_reward_scopes\.py:\d+"),
        ([1.0, float("nan")], "must be a finite number, got nan"),
        ([1.0, "x"], "must be a finite number, got 'x'"),
    ],
)
async def test_values_that_are_none_are_named_with_the_users_line(
    value: Any, rule: str
) -> None:
    with pytest.raises(RewardError, match=rule):
        await Rubric([given(value, turn_rewards)]).scores(
            EpisodeView.of(episode(0, "a", "b"))
        )
    views = [EpisodeView.of(episode(n, "a")) for n in range(2)]
    with pytest.raises(RewardError, match=rule):
        await Rubric([given(value, group_rewards)]).group_scores(views)


async def test_a_reward_of_a_group_that_hangs_fails_its_episodes() -> None:
    @group_rewards
    def hangs(views: Sequence[EpisodeView]) -> list[float]:
        time.sleep(2.0)
        return [0.0 for _ in views]

    (failed,) = await with_group_scores(Rubric([hangs], deadline_s=0.1), [episode(0, "ab")])
    assert (failed.reward, str(failed.status)) == (None, "failed(reward)")
    assert "'hangs' of task 't-1' took longer than 0.1 s" in failed.status.detail


async def test_a_metric_has_weight_0() -> None:
    rubric = Rubric([(lengths, 0.0)])
    parts = await rubric.score(EpisodeView.of(episode(0, "abc")))
    assert (parts, rubric.total(parts)) == ({"lengths": 3.0}, 0.0)
