"""Rollouts beyond a group's size: once enough have finished, the others are cut off and count with
what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.functions.credit import group_advantages
from agentrl.envs import Env, EnvSpec
from agentrl.metrics import rollout_metrics
from agentrl.rollouts import EpisodeRunner, GroupOutcome, GroupRequest
from agentrl.types import Action, GenerateRequest, Message, Observation, StepResult, Task
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import TASK, rollout_spec, say, scripted

NEXT: Message = {"role": "user", "content": "go on"}


class Hanging(Env):
    """Ends an episode whose text is a number; hangs in the second step of any other."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.steps = 0

    async def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        self.steps += 1
        if action.text.isdigit():
            return StepResult(Observation(), terminated=True)
        if self.steps > 1:
            await asyncio.Event().wait()
        return StepResult(Observation((NEXT,)))


Play = Callable[..., Any]


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    runners: list[EpisodeRunner] = []

    async def run(texts: list[str], request: GroupRequest) -> GroupOutcome:
        def text_of(asked: GenerateRequest) -> str:
            return texts[int(asked.session_id.split("-")[1])]

        async def latency(asked: GenerateRequest) -> None:
            if text_of(asked) == "hang":
                await asyncio.Event().wait()

        engine = scripted(lambda asked: say(text_of(asked)), latency=latency)
        runners.append(EpisodeRunner(rollout_spec(env=EnvSpec(Hanging)), engine))
        async with asyncio.timeout(DEADLINE_S):
            return await runners[-1].run_group(request)

    yield run
    for runner in runners:
        await asyncio.to_thread(runner.close)


async def test_a_straggler_is_truncated_and_rewarded_with_what_it_has(play: Play) -> None:
    outcome = await play(["1", "go", "22"], GroupRequest(0, TASK, 2, oversample=1))
    assert [str(t.status) for t in outcome.group.trajectories] == [
        "terminated",
        "truncated(straggler)",
        "terminated",
    ]
    # the length of the last message
    assert [t.reward for t in outcome.group.trajectories] == [
        1.0,
        2.0,
        2.0,
    ]


async def test_the_baseline_counts_the_straggler(play: Play) -> None:
    """Rewards 1, 2, 2: their mean is 5/3, and the credit without scaling is -2/3, 1/3, 1/3."""
    outcome = await play(["1", "go", "22"], GroupRequest(0, TASK, 2, oversample=1))
    rewards = np.asarray([t.reward for t in outcome.group.finished], dtype=np.float64)
    credit = group_advantages(rewards, np.zeros(3, dtype=np.int64), scale_rewards="none")
    assert credit == pytest.approx([-2 / 3, 1 / 3, 1 / 3])


async def test_one_without_a_finished_turn_is_cancelled_and_leaves_the_baseline(
    play: Play,
) -> None:
    """Of rewards 1 and 3 the mean is 2, whatever the cancelled rollout might have got."""
    outcome = await play(["1", "hang", "333"], GroupRequest(0, TASK, 2, oversample=1))
    assert [str(t.status) for t in outcome.group.trajectories] == [
        "terminated",
        "cancelled(straggler)",
        "terminated",
    ]
    rewards = np.asarray([t.reward for t in outcome.group.finished], dtype=np.float64)
    assert group_advantages(
        rewards, np.zeros(2, dtype=np.int64), scale_rewards="none"
    ).tolist() == [
        -1.0,
        1.0,
    ]


async def test_stragglers_are_counted(play: Play) -> None:
    outcome = await play(["1", "go", "hang", "22"], GroupRequest(0, TASK, 2, oversample=2))
    metrics = rollout_metrics([outcome.group])
    assert metrics["count/stragglers"] == 2
    assert metrics["cancelled/straggler"] == 1
    assert metrics["count/effective"] == 3


async def test_without_oversampling_no_rollout_is_cancelled(play: Play) -> None:
    outcome = await play(["1", "22", "333"], GroupRequest(0, TASK, 3))
    assert [str(t.status) for t in outcome.group.trajectories] == ["terminated"] * 3


async def test_the_greedy_baseline_is_played_to_its_end_and_is_no_rollout_of_the_group() -> (
    None
):
    """It ends only after the straggler was cut off."""
    cut_off = asyncio.Event()
    texts = ["7", "hang", "5"]

    def text_of(asked: GenerateRequest) -> str:
        return texts[int(asked.session_id.split("-")[1])]

    async def latency(asked: GenerateRequest) -> None:
        if text_of(asked) == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                cut_off.set()
        if text_of(asked) == "5":
            await cut_off.wait()

    engine = scripted(lambda asked: say(text_of(asked)), latency=latency)
    runner = EpisodeRunner(rollout_spec(env=EnvSpec(Hanging)), engine)
    try:
        request = GroupRequest(0, TASK, 1, oversample=1, greedy_baseline=True)
        async with asyncio.timeout(DEADLINE_S):
            group = (await runner.run_group(request)).group
    finally:
        runner.close()
    trained, straggler, greedy = group.trajectories
    assert [one.purpose for one in group.trajectories] == ["train", "train", "baseline"]
    assert str(straggler.status).endswith("(straggler)")
    assert greedy.status.finished
    assert (group.finished[0], group.baseline) == (trained, greedy)
    assert greedy not in group.finished
    asked = [turn.sampling for one in (trained, greedy) for turn in one.turns]
    assert [sampling.temperature for sampling in asked if sampling is not None] == [
        1.0,
        0.0,
    ]
    metrics = rollout_metrics([group])
    assert metrics["group/baseline_reward"] == greedy.reward
    assert metrics["count/trajectories"] == 2.0
