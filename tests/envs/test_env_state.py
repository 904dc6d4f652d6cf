"""An environment's state between two steps, as a checkpoint keeps it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.envs import AsyncEnv, Env, EnvSpec, ToolEnv, TurnLimit, UserEnv
from agentrl.errors import EnvError
from agentrl.sandbox import SandboxPool, SandboxSpec
from agentrl.tools import ToolFactory, tool
from agentrl.types import Action, Message, Observation, StepResult, Task, ToolCall

TASK = Task("t", ({"role": "user", "content": "hi"},), info={"user": ["Go on."]})
SAID: Message = {"role": "assistant", "content": "on"}


class Steps(Env):
    """Counts its steps."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.steps: list[int] = []

    def reset(self, *, seed: int) -> Observation:
        self.seed = seed
        return Observation(self.task.messages)

    def step(self, action: Action) -> StepResult:
        self.steps.append(len(self.steps) + self.seed)
        return StepResult(Observation(({"role": "user", "content": str(self.steps)},)))


async def begun(env: Env) -> AsyncEnv:
    driven = AsyncEnv(env)
    await driven.reset(seed=7)
    await driven.step(Action("on", SAID))
    return driven


async def test_by_default_every_attribute_goes_along() -> None:
    before, after = await begun(Steps(TASK)), AsyncEnv(Steps(TASK))
    await after.restore(await before.save())
    result = await after.step(Action("on", SAID))
    assert result.observation.messages[0]["content"] == "[7, 8]"


async def test_what_is_saved_is_of_that_moment() -> None:
    before, after = await begun(Steps(TASK)), AsyncEnv(Steps(TASK))
    saved = await before.save()
    await before.step(Action("on", SAID))
    await after.restore(saved)
    assert after.env.steps == [7]  # type: ignore[attr-defined]


async def test_a_restored_environment_is_not_reset() -> None:
    before, after = await begun(Steps(TASK)), AsyncEnv(Steps(TASK))
    await after.restore(await before.save())
    with pytest.raises(EnvError, match="reset comes once and first"):
        await after.reset(seed=0)


async def test_a_state_is_restored_first() -> None:
    before = await begun(Steps(TASK))
    with pytest.raises(EnvError, match="a state is restored first and once"):
        await before.restore(await before.save())


def locked(env: Any) -> None:
    env.lock = threading.Lock()


def large(env: Any) -> None:
    env.corpus = bytes(2**20)


def pooled(env: Any) -> None:
    env.sandboxes = SandboxPool(SandboxSpec(), max_running=1)


@pytest.mark.parametrize(
    ("holds", "why"),
    [
        (
            locked,
            "cannot be pickled: TypeError: cannot pickle '_thread.lock'.*; leave out lock, by",
        ),
        (large, "more than 1048576 bytes; let state_dict give what matters"),
        (
            pooled,
            "cannot be pickled.*; leave out sandboxes, by state_dict or a Wrapper's kept",
        ),
    ],
)
async def test_what_cannot_be_kept_is_named(holds: Callable[[Any], None], why: str) -> None:
    env = Steps(TASK)
    holds(env)
    with pytest.raises(EnvError, match=f"Steps.*{why}|{why}"):
        await (await begun(env)).save()


@pytest.mark.parametrize(
    "make",
    [lambda kind: kind(TASK), lambda kind: TurnLimit(kind(TASK), 9)],
    ids=["itself", "wrapped"],
)
@pytest.mark.parametrize("kind", [Steps, ToolEnv])
async def test_attributes_in_slots_are_not_lost_in_silence(
    kind: type[Env], make: Callable[[Any], Env]
) -> None:
    slotted = type("Slotted", (kind,), {"__slots__": ("hidden",)})
    env = AsyncEnv(make(slotted))
    await env.reset(seed=0)
    with pytest.raises(EnvError, match=r"Slotted\.state_dict gives none here"):
        await env.save()


async def test_a_state_that_its_environment_refuses_is_named() -> None:
    class Other(Steps):
        def load_state_dict(self, state: Any) -> None:
            raise KeyError("board")

    saved = await (await begun(Steps(TASK))).save()
    with pytest.raises(
        EnvError, match="the state of Other cannot be read back: KeyError: 'board'"
    ):
        await AsyncEnv(Other(TASK)).restore(saved)


@tool
def echo(text: str) -> str:
    """Says it again.

    Args:
        text: what.
    """
    return text


class Scored(ToolEnv):
    """A ToolEnv with a state of its own."""

    points = 0


async def test_a_tool_env_keeps_what_a_subclass_adds() -> None:
    before, after = Scored(TASK, tools=[echo]), Scored(TASK, tools=[echo])
    await before.reset(seed=5)
    before.points = 3
    driven = AsyncEnv(after)
    await driven.restore(await AsyncEnv(before).save())
    assert (
        after.points,
        vars(after)["_seed"],
        await driven.step(Action("done", SAID)),
    ) == (
        3,
        5,
        StepResult(Observation(), terminated=True),
    )


def locks(kind: type[ToolEnv], *, first: bool) -> Callable[[], ToolEnv]:
    class Lock(kind):  # type: ignore[valid-type, misc]
        """Has three guesses, which it counts from before or after its parent is made."""

        def __init__(self) -> None:
            if first:
                self.task, self.left = TASK, 3
            super().__init__(TASK, tools=[tool(self.guess)])
            if not first:
                self.left = 3

        def guess(self) -> str:
            """Guesses."""
            self.left -= 1
            return f"{self.left} left"

    return Lock


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [ToolEnv, UserEnv])
async def test_what_a_subclass_counts_goes_on_whenever_it_began(
    kind: type[ToolEnv], first: bool
) -> None:
    make = locks(kind, first=first)
    made = ToolCall("call_0", "guess", {})
    message: Message = {"role": "assistant", "content": "", "tool_calls": [made.openai()]}
    guess = Action("", message, tool_calls=(made,))
    before, after = AsyncEnv(make()), AsyncEnv(make())
    await before.reset(seed=0)
    await before.step(guess)
    saved = await before.save()
    # a large task is none of the state
    assert "task" not in pickle.loads(saved)
    await after.restore(saved)
    assert (await after.step(guess)).observation.messages[0]["content"] == "1 left"


async def test_tools_of_the_episodes_own_may_have_state_and_cannot_be_kept() -> None:
    env = EnvSpec(ToolEnv, kwargs={"tools": [ToolFactory(lambda: echo)]}).build(TASK)
    with pytest.raises(EnvError, match=r"ToolEnv\.state_dict gives none here"):
        await AsyncEnv(env).save()


async def test_an_environment_that_holds_a_sandbox_cannot_be_kept() -> None:
    env = Steps(TASK)
    sandbox = SandboxSpec().build()
    try:
        env.box = sandbox  # type: ignore[attr-defined]
        with pytest.raises(EnvError, match="the state of Steps cannot be pickled"):
            await (await begun(env)).save()
    finally:
        await sandbox.close()
