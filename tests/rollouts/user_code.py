"""A user's code that raises whatever its task says, at the boundary that its task says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import Env, EnvSpec, EpisodeView, Rubric, ToolEnv, group_rewards
from agentrl.envs.wrappers import Wrapper, WrapperReference
from agentrl.rollouts import RolloutSpec
from agentrl.tools import ResourceReference, tool
from agentrl.types import Action, GenerateRequest, Observation, StepResult, Task
from tests.rollouts.bytewise import MODEL_VOCAB, Built, call, rollout_spec, say

HERE = __name__ + ":"


class UnprintableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


RAISED: Mapping[str, Callable[[], BaseException]] = {
    "KeyError": lambda: KeyError("k"),
    "OSError": lambda: OSError(24, "Too many open files"),
    "MemoryError": MemoryError,
    "TimeoutError": lambda: TimeoutError("t"),
    "StopIteration": StopIteration,
    "RecursionError": RecursionError,
    "UnprintableError": UnprintableError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": lambda: asyncio.CancelledError("c"),
    "BaseException": lambda: BaseException("b"),
}


def meet(task: Task, boundary: str) -> None:
    """Raises where the task says so."""
    if task.info["at"] == boundary:
        raise RAISED[task.info["raises"]]()


def raising_line() -> str:
    """The line of ``meet`` that raises."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(
        n for n, line in enumerate(lines, 1) if line.startswith("        raise RAISED")
    )
    return f"{__file__}:{number}"


class Plain(Env):
    """Its methods are synchronous."""

    def __init__(self, task: Task) -> None:
        self.task = task
        meet(task, "env.init")

    def reset(self, *, seed: int) -> Observation:
        meet(self.task, "env.reset")
        return Observation(self.task.messages)

    def step(self, action: Action) -> StepResult:
        meet(self.task, "env.step")
        return StepResult(Observation(), terminated=True)

    def snapshot(self) -> Mapping[str, Any]:
        meet(self.task, "env.snapshot")
        return {}

    def close(self) -> None:
        meet(self.task, "env.close")


class Async(Env):
    """Its methods are coroutines."""

    def __init__(self, task: Task) -> None:
        self.task = task
        meet(task, "env.init")

    async def reset(self, *, seed: int) -> Observation:
        await asyncio.sleep(0)
        meet(self.task, "env.reset")
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(0)
        meet(self.task, "env.step")
        return StepResult(Observation(), terminated=True)

    async def snapshot(self) -> Mapping[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0)
        meet(self.task, "env.snapshot")
        return {}

    async def close(self) -> None:
        await asyncio.sleep(0)
        meet(self.task, "env.close")


class Wrapped(Wrapper):
    """Raises in what a wrapper changes."""

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        meet(self.unwrapped.task, "wrapper")  # type: ignore[attr-defined]
        return result


@tool
class PlainBox:
    """A toolset of synchronous methods."""

    def __init__(self, task: Task) -> None:
        self.task = task
        meet(task, "tool.init")

    def setup(self) -> None:
        meet(self.task, "tool.setup")

    @tool
    def put(self) -> str:
        """Put."""
        meet(self.task, "tool.call")
        return "done"

    def close(self) -> None:
        meet(self.task, "tool.close")


@tool
class AsyncBox:
    """A toolset of coroutines."""

    def __init__(self, task: Task) -> None:
        self.task = task
        meet(task, "tool.init")

    async def setup(self) -> None:
        await asyncio.sleep(0)
        meet(self.task, "tool.setup")

    @tool
    async def put(self) -> str:
        """Put."""
        await asyncio.sleep(0)
        meet(self.task, "tool.call")
        return "done"

    async def close(self) -> None:
        await asyncio.sleep(0)
        meet(self.task, "tool.close")


def plain_reward(view: EpisodeView) -> float:
    if view.task.info["kind"] == "plain":
        meet(view.task, "reward")
    return 1.0


async def async_reward(view: EpisodeView) -> float:
    await asyncio.sleep(0)
    if view.task.info["kind"] == "async":
        meet(view.task, "reward")
    return 1.0


@group_rewards
def plain_group(views: Sequence[EpisodeView]) -> list[float]:
    if views[0].task.info["kind"] == "plain":
        meet(views[0].task, "group reward")
    return [1.0] * len(views)


@group_rewards
async def async_group(views: Sequence[EpisodeView]) -> list[float]:
    await asyncio.sleep(0)
    if views[0].task.info["kind"] == "async":
        meet(views[0].task, "group reward")
    return [1.0] * len(views)


def open_raising(raises: str) -> None:
    """A resource that cannot be opened."""
    meet(Task("resource", info={"at": "resource", "raises": raises}), "resource")


def env_of(task: Task) -> EnvSpec:
    """The environment whose boundary the task names."""
    plain = task.info["kind"] == "plain"
    if task.info["at"] == "resource":
        args = {"raises": task.info["raises"]}
        opened = ResourceReference(function=f"{HERE}open_raising", args=args)
        return EnvSpec(ToolEnv, kwargs={"resources": {"opened": opened}})
    if task.info["at"].startswith("tool"):
        box = PlainBox if plain else AsyncBox
        return EnvSpec(ToolEnv, kwargs={"tools": [box], "describe_tools_in_prompt": False})
    wrappers = (WrapperReference(function=f"{HERE}Wrapped"),)
    return EnvSpec(Plain if plain else Async, wrappers=wrappers)


class ScriptedPlan:
    """Plays in any process: one call, then an answer."""

    @property
    def spec(self) -> Any:
        """As an ``EnginePlan`` has one."""
        return self

    def traits(self) -> Any:
        """As an ``EngineSpec`` has some: weights come from nowhere."""
        return self

    transport = None

    def build(self, sender: object = None) -> ScriptedEngine:
        return ScriptedEngine(_script, vocab_size=MODEL_VOCAB)


def _script(request: GenerateRequest) -> Sequence[int]:
    first = request.request_id.rpartition("/")[2] == "0"
    return say(call("put") if first else "end")


def conformance_spec() -> RolloutSpec:
    """Episodes that are played once."""
    rubric = Rubric([plain_reward, async_reward, plain_group, async_group])
    return replace(rollout_spec(max_retries=0), rubric=Built(rubric))
