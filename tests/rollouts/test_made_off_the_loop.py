"""Environments and the tools that episodes own are made in threads: the event loop goes on
meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentrl.envs import ENV_THREADS, Env, EnvSpec, ToolEnv, build_env
from agentrl.rollouts import EpisodeRunner
from agentrl.tools import TOOL_THREADS, ToolFactory, tool
from agentrl.types import Action, Observation, StepResult, Task
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import play, rollout_spec, say, scripted


class Slow(Env):
    """Takes its time to be made, and says where it was."""

    made_in: str = ""

    def __init__(
        self,
        task: Task,
        begun: threading.Event | None = None,
        go: threading.Event | None = None,
    ) -> None:
        self.closed = threading.Event()
        Slow.made_in = threading.current_thread().name
        if begun is not None and go is not None:
            begun.set()
            go.wait(DEADLINE_S)

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "hi"},), tools=())

    def step(self, action: Action) -> StepResult:
        return StepResult(Observation(), terminated=True)

    def close(self) -> None:
        self.closed.set()


async def test_an_environment_is_made_in_a_thread() -> None:
    trajectory = await play([say("hello")], env=EnvSpec(Slow))

    assert str(trajectory.status) == "terminated"
    assert Slow.made_in == "agentrl-env"


async def test_a_tool_that_an_episode_owns_is_made_in_a_thread() -> None:
    made_in: list[str] = []

    def make() -> Any:
        made_in.append(threading.current_thread().name)

        @tool
        def nothing() -> str:
            """Does nothing."""
            return ""

        return nothing

    await play([say("hello")], tools=[ToolFactory(make)])

    assert made_in == ["agentrl-env"]


async def test_the_loop_goes_on_while_an_environment_is_made() -> None:
    begun, go = threading.Event(), threading.Event()
    making = asyncio.create_task(build_env(lambda: Slow(Task("t"), begun, go)))
    await asyncio.to_thread(begun.wait, 60)
    assert not making.done()
    go.set()
    assert isinstance(await making, Slow)


async def test_an_environment_that_nobody_waits_for_any_more_is_closed() -> None:
    begun, go, made = threading.Event(), threading.Event(), list[Slow]()

    def make() -> Slow:
        made.append(Slow(Task("t"), begun, go))
        return made[0]

    making = asyncio.create_task(build_env(make))
    await asyncio.to_thread(begun.wait, 60)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    go.set()
    while not made:
        await asyncio.sleep(0.01)
    assert await asyncio.to_thread(made[0].closed.wait, 60)


async def test_what_the_factory_raises_is_the_episodes_end() -> None:
    def broken(task: Task) -> ToolEnv:
        raise RuntimeError("no world today")

    trajectory = await play([say("hello")], env=EnvSpec(broken))

    assert str(trajectory.status) == "failed(env)"
    assert "no world today" in trajectory.status.detail


def test_a_runner_has_as_many_threads_as_the_settings_say() -> None:
    before = TOOL_THREADS.max_threads, ENV_THREADS.max_threads
    try:
        runner = EpisodeRunner(rollout_spec(tool_threads=3, env_threads=5), scripted([]))
        runner.close()
        assert (TOOL_THREADS.max_threads, ENV_THREADS.max_threads) == (3, 5)
    finally:
        TOOL_THREADS.resize(before[0])
        ENV_THREADS.resize(before[1])


@tool
def shared() -> str:
    """Is an object of all episodes."""
    return ""


class OwnConstructor(ToolEnv):
    def __init__(self, task: Task, **settings: Any) -> None:
        super().__init__(task, **settings)


@pytest.mark.parametrize(
    ("spec", "plain"),
    [
        (EnvSpec(ToolEnv, {"tools": (shared,)}), True),
        (EnvSpec(ToolEnv, {"tools": (ToolFactory(lambda: shared),)}), False),
        (EnvSpec(OwnConstructor, {"tools": (shared,)}), False),
        (EnvSpec(Slow), False),
    ],
)
def test_what_runs_no_constructor_of_a_users_needs_no_thread_after_the_first(
    spec: EnvSpec, plain: bool
) -> None:
    assert not spec.is_plain
    spec.build(Task("a", ({"role": "user", "content": "hi"},)))
    assert spec.is_plain == plain
