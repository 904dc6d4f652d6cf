"""Thousands of episodes in one process, each stage of which overlaps with every other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.functions.credit import group_advantages
from agentrl.envs import EnvSpec, EpisodeView, ToolEnv
from agentrl.errors import EngineError
from agentrl.rollouts import EpisodeRunner, GroupRequest, StagePermits
from agentrl.tools import tool
from agentrl.types import Observation, Task
from tests.kit.waiting import DEADLINE_S, gather
from tests.rollouts.bytewise import TASK, call, say, scripted
from tests.rollouts.conftest import Open


@pytest.mark.slow
def test_two_thousand_episodes_wait_for_the_engine_at_once(opened: Open) -> None:
    number, waiting, all_there = 2048, 0, asyncio.Event()

    async def latency(request: Any) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == number:
            all_there.set()
        await all_there.wait()  # nobody is answered before everybody has asked

    permits = StagePermits(preparing=number, running=number, scoring=number)
    runner = opened(scripted(lambda request: say("x"), latency=latency), permits=permits)
    runner.submit(
        [GroupRequest(group_index, TASK, 8) for group_index in range(number // 8)]
    )
    played = [
        t
        for outcome in gather(runner.collect, number // 8)
        for t in outcome.group.trajectories
    ]
    assert (len(played), {str(t.status) for t in played}, waiting) == (
        number,
        {"terminated"},
        number,
    )


class Slow(ToolEnv):
    """Takes its time for ``reset`` where the task is called so."""

    held: Held

    async def reset(self, *, seed: int) -> Observation:
        if self.task.id == "reset":
            await self.held.hold()
        return await super().reset(seed=seed)


class Held:
    """Says that somebody has come, and keeps him until he is let go."""

    def __init__(self) -> None:
        self.come, self._go = threading.Event(), asyncio.Event()

    async def hold(self) -> None:
        self.come.set()
        await self._go.wait()

    def let_go(self, runner: EpisodeRunner) -> None:
        runner._loop.call_soon_threadsafe(self._go.set)


@pytest.mark.parametrize("stage", ["reset", "generate", "tool", "reward"])
def test_an_episode_that_is_kept_in_a_stage_keeps_no_other(
    opened: Open, stage: str
) -> None:
    held = Held()

    @tool
    async def wait(task: str) -> str:
        """Waits.

        Args:
            task: who waits.
        """
        if task == "tool":
            await held.hold()
        return "done"

    async def latency(request: Any) -> None:
        if stage == "generate" and request.session_id.startswith("train/0-"):
            await held.hold()

    async def reward(view: EpisodeView) -> float:
        if view.task.id == "reward":
            await held.hold()
        return 1.0

    def script(request: Any) -> list[int]:
        group_index = request.session_id.split("/")[1].split("-")[0]
        turn = request.request_id.rpartition("/")[2]
        return (
            say(call("wait", task=stage if group_index == "0" else "quick"))
            if turn == "0"
            else say("end")
        )

    kept = type("Kept", (Slow,), {"held": held})
    env = EnvSpec(kept, kwargs={"tools": [wait], "describe_tools_in_prompt": False})
    runner = opened(scripted(script, latency=latency), env=env, reward=reward)
    runner.submit([GroupRequest(0, Task(stage, TASK.messages), 1)])
    assert held.come.wait(DEADLINE_S)
    runner.submit([GroupRequest(group_index, TASK, 2) for group_index in range(1, 9)])
    assert sorted(
        outcome.request.group_index for outcome in gather(runner.collect, 8)
    ) == list(range(1, 9))
    held.let_go(runner)
    ((trajectory,),) = [outcome.group.finished for outcome in gather(runner.collect, 1)]
    assert (trajectory.group_index, str(trajectory.status), trajectory.reward) == (
        0,
        "terminated",
        1.0,
    )


def test_the_baseline_is_that_of_the_rollouts_that_finished(opened: Open) -> None:
    """Rewards 1 and 4 beside a failure: the baseline is 2.5, where a failure at 0 would make it
    5/3.
    """

    def script(request: Any) -> list[int]:
        rollout_index = int(request.session_id.split("-")[1])
        if rollout_index == 1:
            raise EngineError("not this one", retryable=False)
        return say("x" if rollout_index == 0 else "xxxx")  # the reward is the length

    runner = opened(scripted(script))
    runner.submit([GroupRequest(3, TASK, 3)])
    (outcome,) = gather(runner.collect, 1)
    rewards = np.asarray([t.reward for t in outcome.group.finished], dtype=np.float64)
    assert group_advantages(
        rewards, np.zeros(2, dtype=np.int64), scale_rewards="none"
    ).tolist() == [
        -1.5,
        1.5,
    ]
