"""What a tool's output does to its episode: reward, end, the tools on offer, pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.envs import AsyncEnv, ToolEnv, TurnLimit
from agentrl.errors import EnvError, ToolError
from agentrl.tools import HermesParser, ToolExecutor, ToolOutput, tool
from agentrl.types import Action, StepResult, Task, ToolCall, ToolResult

TASK = Task("t-1", ({"role": "user", "content": "hi"},))


def act(*names: str) -> Action:
    text = "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in names
    )
    parsed = HermesParser().parse(text)
    return Action(text, parsed.message, parsed.tool_calls, parsed.problems)


async def stepped(env: ToolEnv | AsyncEnv, *names: str) -> StepResult:
    return await env.step(act(*names))


async def started(*tools: Any, **settings: Any) -> AsyncEnv:
    env = AsyncEnv(ToolEnv(TASK, tools=tools, **settings))
    await env.reset(seed=0)
    return env


@tool
def gain() -> ToolOutput:
    """Gain."""
    return ToolOutput("more", reward=0.25)


@tool
def submit() -> ToolOutput:
    """Submit."""
    return ToolOutput("thanks", reward=1.0, end=True)


async def test_rewards_of_the_calls_join_the_steps() -> None:
    result = await stepped(await started(gain), "gain", "gain")
    assert (result.reward, result.terminated) == (0.5, False)
    assert [record.result.reward for record in result.calls if record.result] == [
        0.25,
        0.25,
    ]


async def test_a_call_ends_the_episode_which_is_terminated_also_in_the_last_turn() -> None:
    env = AsyncEnv(TurnLimit(ToolEnv(TASK, tools=[gain, submit]), 1))
    await env.reset(seed=0)
    result = await stepped(env, "gain", "submit")
    assert (result.reward, result.terminated, result.truncated) == (1.25, True, False)
    assert result.observation.messages[-1]["content"] == "thanks"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), True, "1", None])
async def test_a_reward_that_is_no_number_is_ours(reward: Any) -> None:
    @tool
    def odd() -> ToolOutput:
        """Odd."""
        return ToolOutput("", reward=reward)

    with pytest.raises(
        ToolError, match=r"tool 'odd': ToolOutput\.reward must be a finite number"
    ):
        await stepped(await started(odd), "odd")


async def test_metrics_without_names_are_ours() -> None:
    @tool
    def odd() -> ToolOutput:
        """Odd."""
        return ToolOutput("", metrics=[1.0])  # type: ignore[arg-type]

    with pytest.raises(
        ToolError, match=r"tool 'odd': ToolOutput\.metrics must be a mapping"
    ):
        await stepped(await started(odd), "odd")


@tool
def enter() -> ToolOutput:
    """Enter the cellar."""
    return ToolOutput("It is dark.", tools=[light, "leave"])


@tool
def leave() -> ToolOutput:
    """Leave."""
    return ToolOutput("Outside.", tools=["enter", "leave"])


@tool
def light(lamp: int = 1) -> str:
    """Light a lamp."""
    return "Bright."


async def test_tools_that_an_output_offers_are_told_in_its_message_and_callable_from_then_on() -> (
    None
):
    env = await started(enter, leave)
    assert (await stepped(env, "light")).info == {"tool_errors": {"unknown_tool": 1}}
    result = await stepped(env, "enter")

    first, told, described = result.observation.messages[0]["content"].rsplit("\n", 2)
    assert (first, told) == ("It is dark.\n", "The tools on offer are now: light, leave.")
    assert json.loads(described) == light.spec.openai()
    assert result.observation.tools is None  # the prompt's head stays as it is
    assert result.observation.tools_in_messages == (light.spec,)
    again = await stepped(env, "light", "enter")
    assert [m["content"] for m in again.observation.messages] == [
        "Bright.",
        "Error: there is no tool 'enter'. The tools are: light, leave.",
    ]
    # one that was told of before is not described again
    assert (await stepped(env, "leave")).observation.messages[0]["content"] == (
        "Outside.\n\nThe tools on offer are now: enter, leave."
    )


async def test_what_is_on_offer_is_saved_by_name() -> None:
    @tool
    def only() -> ToolOutput:
        """Only."""
        return ToolOutput("", tools=["only"])

    before = await started(only, gain)
    await stepped(before, "only")
    after = AsyncEnv(ToolEnv(TASK, tools=[only, gain]))
    await after.restore(await before.save())
    assert (await stepped(after, "gain")).info == {"tool_errors": {"unknown_tool": 1}}


async def test_tools_that_no_configuration_names_cannot_be_saved() -> None:
    env = await started(enter, leave)
    await stepped(env, "enter")
    with pytest.raises(EnvError, match=r"ToolEnv\.state_dict gives none here"):
        await env.save()


@pytest.mark.parametrize("tools", [["nothing"], [3], ["gain", "gain"], [light, light]])
async def test_an_offer_of_what_is_no_tool_is_ours(tools: list[Any]) -> None:
    @tool
    def offer() -> ToolOutput:
        """Offer."""
        return ToolOutput("", tools=tools)

    with pytest.raises(
        ToolError, match=r"ToolOutput\.tools must hold different Tools or names of"
    ):
        await stepped(await started(offer, gain), "offer")


async def only(made: Any, **limits: Any) -> ToolResult:
    executor = ToolExecutor([made], **limits)
    (record,) = await executor.run([ToolCall("call_0", made.spec.name, {})])
    assert record.result is not None
    return record.result


async def test_pieces_are_joined() -> None:
    @tool
    async def tell() -> AsyncIterator[Any]:
        """Tell."""
        yield "one, "
        yield b"two, "
        yield [3]
        yield ToolOutput("!", metrics={"n": 1}, reward=0.5)

    result = await only(tell)
    assert (result.content, result.reward, result.metrics) == (
        "one, two, [3]!",
        0.5,
        {"n": 1.0},
    )
    assert tell.spec.parameters["properties"] == {}


async def test_a_deadline_keeps_the_pieces_that_came_and_ends_the_generator() -> None:
    ended = asyncio.Event()

    @tool(deadline_s=0.2)
    async def tell() -> AsyncIterator[str]:
        """Tell."""
        try:
            yield "first"
            await asyncio.Event().wait()
        finally:
            ended.set()

    result = await only(tell)
    assert result.error == "timeout"
    assert result.content == (
        "first\nThe output above came before this error.\n"
        "Error: tell took longer than 0.2 s and was ended."
    )
    assert ended.is_set()


async def test_what_a_generator_raises_comes_behind_its_pieces() -> None:
    @tool
    async def tell() -> AsyncIterator[str]:
        """Tell."""
        yield "first\n"
        raise ValueError("no more")

    result = await only(tell)
    assert result.error == "exception"
    assert result.content.startswith("first\nThe output above")
    assert result.content.endswith("tell raised ValueError: no more")


async def test_an_endless_generator_is_ended_and_never_holds_the_loop() -> None:
    @tool
    async def tell() -> AsyncIterator[str]:
        """Tell."""
        while True:
            yield "x" * 1000

    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    result = await only(tell, max_output_chars=100)
    watching.cancel()
    assert result.error == "output_limit"
    assert result.truncated
    assert turns > 1, "nothing else had a turn on the loop"
