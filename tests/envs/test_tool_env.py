"""ToolEnv: the opening, the answers, the end, and what it owns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import AsyncEnv, EnvSpec, ToolEnv, TurnLimit, check_env
from agentrl.errors import ConfigError, EnvError, SandboxError
from agentrl.sandbox import SandboxPool, SandboxSpec
from agentrl.tools import HermesParser, PythonTool, ToolContext, tool
from agentrl.types import Action, FinishReason, StepResult, Task
from tests.kit.waiting import DEADLINE_S

TASK = Task("t-1", ({"role": "user", "content": "What is 1 + 2?"},), answer=3)
UNSAFE = SandboxSpec(backend="unsafe")
PYTHON = '<tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>'
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def draw(context: ToolContext) -> str:
    """Draw."""
    return f"{context.seed}"


@tool
def where(context: ToolContext) -> str:
    """Where."""
    return "nowhere" if context.sandbox is None else "a sandbox"


@tool
class Counter:
    """Counts."""

    closed: list[int] = []  # noqa: RUF012 - shared on purpose: it outlives the instances

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count

    def close(self) -> None:
        self.closed.append(self.count)


def act(text: str, finish_reason: FinishReason = "stop") -> Action:
    parsed = HermesParser().parse(text)
    return Action(text, parsed.message, parsed.tool_calls, parsed.problems, finish_reason)


async def started(**settings: Any) -> ToolEnv:
    env = ToolEnv(TASK, **settings)
    await env.reset(seed=1)
    return env


async def step(
    text: str, finish_reason: FinishReason = "stop", **settings: Any
) -> StepResult:
    return await (await started(**settings)).step(act(text, finish_reason))


def answer(result: StepResult) -> object:
    return result.observation.messages[0]["content"]


async def test_the_opening_has_the_system_prompt_the_task_and_the_tools() -> None:
    observation = await ToolEnv(TASK, tools=[add], system_prompt="Be brief.").reset(seed=1)

    assert observation.messages == (
        {"role": "system", "content": "Be brief."},
        *TASK.messages,
    )
    assert observation.tools == (add.spec,)


async def test_tools_that_are_not_announced_work_all_the_same() -> None:
    env = ToolEnv(TASK, tools=[add], describe_tools_in_prompt=False)

    assert (await env.reset(seed=1)).tools == ()
    assert (await env.step(act(CALL))).observation.messages[0]["content"] == "3"


async def test_a_call_is_answered_and_the_episode_goes_on() -> None:
    result = await step(CALL, tools=[add])

    assert (result.terminated, result.truncated) == (False, False)
    assert result.observation.messages == (
        {"role": "tool", "content": "3", "tool_call_id": "call_0", "name": "add"},
    )
    assert [record.call.name for record in result.calls if record.call] == ["add"]


async def test_a_message_without_a_call_ends_the_episode() -> None:
    result = await step("It is 3.", tools=[add])

    assert (result.terminated, result.truncated, result.observation.messages) == (
        True,
        False,
        (),
    )


async def test_a_malformed_call_is_answered_and_counted() -> None:
    result = await step(f"{CALL}<tool_call>{{oops}}</tool_call>", tools=[add])

    assert not result.terminated
    assert [message["tool_call_id"] for message in result.observation.messages] == [
        "call_0",
        "call_1",
    ]
    assert result.info == {
        "tool_errors": {"malformed": 1},
        "call_problems": {"malformed_json": 1},
    }


async def test_an_unknown_tool_is_answered_and_counted() -> None:
    assert (await step(CALL)).info == {"tool_errors": {"unknown_tool": 1}}


@pytest.mark.parametrize("text", ["It is", '<tool_call>{"name": "add", "argu'])
async def test_a_completion_cut_before_a_call_was_complete_truncates(text: str) -> None:
    result = await step(text, "length", tools=[add])

    assert (result.terminated, result.truncated, result.info["reason"]) == (
        False,
        True,
        "length",
    )


async def test_a_call_cut_by_length_is_recorded_all_the_same() -> None:
    (record,) = (
        await step('<tool_call>{"name": "add", "argu', "length", tools=[add])
    ).calls

    assert record.problem is not None
    assert record.problem.kind == "unclosed"


async def test_a_complete_call_in_a_completion_cut_by_length_is_run() -> None:
    result = await step(CALL + "and th", "length", tools=[add])

    assert not result.truncated
    assert result.observation.messages[0]["content"] == "3"


async def test_the_last_turn_allowed_truncates() -> None:
    env = TurnLimit(await started(tools=[add]), 2)

    assert not (await env.step(act(CALL))).truncated
    last = await env.step(act(CALL))
    assert (last.truncated, last.info) == (True, {"reason": "max_turns"})
    assert len(last.calls) == 1


async def test_an_answer_on_the_last_turn_terminates() -> None:
    result = await TurnLimit(await started(), 1).step(act("It is 3."))

    assert (result.terminated, result.truncated) == (True, False)


async def test_calls_draw_from_the_seed_and_the_turn() -> None:
    async def drawn(seed: int) -> list[str]:
        env = ToolEnv(TASK, tools=[draw])
        await env.reset(seed=seed)
        call = act('<tool_call>{"name": "draw"}</tool_call>')
        return [(await env.step(call)).observation.messages[0]["content"] for _ in range(2)]

    assert await drawn(1) == await drawn(1)
    assert len({*await drawn(1), *await drawn(2)}) == 4


async def test_a_factory_gives_each_episode_its_own_state_and_it_is_closed() -> None:
    call = act('<tool_call>{"name": "counter"}</tool_call>')
    one, other = await started(tools=[Counter]), await started(tools=[Counter])
    await one.step(call)

    assert (await one.step(call)).observation.messages[0]["content"] == "2"
    assert (await other.step(call)).observation.messages[0]["content"] == "1"
    for env in (one, other, one):
        await env.close()
    assert Counter.make.stateful.closed == [2, 1]  # type: ignore[attr-defined]


async def test_the_sandbox_lives_from_the_first_call_to_close() -> None:
    pool = SandboxPool(UNSAFE, max_running=1)
    env = await started(tools=[PythonTool()], sandbox=pool)
    assert env.sandbox is None
    assert answer(await env.step(act(PYTHON))) == "42"
    sandbox = env.sandbox
    await env.close()
    await env.close()

    assert sandbox is not None
    assert env.sandbox is None
    with pytest.raises(SandboxError):
        await sandbox.run("print(1)")
    async with pool.session():  # the pool has its only place back
        pass


async def test_a_sandbox_of_its_own_is_closed_too() -> None:
    env = await started(sandbox=UNSAFE)
    sandbox = await env.open_sandbox()
    await env.close()

    with pytest.raises(SandboxError):
        await sandbox.run("print(1)")


async def test_calls_that_need_no_sandbox_take_none() -> None:
    env = await started(tools=[PythonTool(), add], sandbox=UNSAFE)
    await env.step(
        act(
            f'{CALL}<tool_call>{{"name": "unknown"}}</tool_call><tool_call>{{oops}}</tool_call>'
        )
    )

    assert env.sandbox is None


async def test_a_function_that_takes_the_context_finds_the_sandbox_there() -> None:
    env = await started(tools=[where], sandbox=UNSAFE)

    assert (
        answer(await env.step(act('<tool_call>{"name": "where"}</tool_call>')))
        == "a sandbox"
    )
    await env.close()


async def test_files_of_the_calls_are_there_for_a_reward() -> None:
    env = await started(tools=[PythonTool()], sandbox=UNSAFE)
    code = "open('answer', 'w').write('3')"
    await env.step(
        act(
            f'<tool_call>{{"name": "python", "arguments": {{"code": "{code}"}}}}</tool_call>'
        )
    )

    assert await (await env.open_sandbox()).read_file("answer") == b"3"
    await env.close()


async def test_those_who_open_the_sandbox_at_once_get_the_same() -> None:
    env = await started(sandbox=UNSAFE)
    one, other = await asyncio.gather(env.open_sandbox(), env.open_sandbox())

    assert one is other


async def test_an_exhausted_pool_holds_up_only_the_episodes_that_need_it() -> None:
    pool = SandboxPool(UNSAFE, max_running=1)
    holder, waiter, idle = [
        await started(tools=[PythonTool()], sandbox=pool) for _ in range(3)
    ]
    await holder.step(act(PYTHON))
    waiting = asyncio.create_task(waiter.step(act(PYTHON)))

    assert (await idle.step(act("It is 3."))).terminated
    assert not (await asyncio.wait([waiting], timeout=0.1))[0]
    await holder.close()
    async with asyncio.timeout(DEADLINE_S):
        assert answer(await waiting) == "42"
    await waiter.close()


async def test_an_episode_that_is_cancelled_while_it_waits_for_a_sandbox_costs_none() -> (
    None
):
    pool = SandboxPool(UNSAFE, max_running=1)
    async with pool.session():
        env = await started(tools=[PythonTool()], sandbox=pool)
        waiting = asyncio.create_task(env.step(act(PYTHON)))
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await env.close()
    async with asyncio.timeout(DEADLINE_S), pool.session():
        pass


async def test_a_sandbox_that_comes_after_close_goes_back() -> None:
    pool = SandboxPool(UNSAFE, max_running=1)
    async with pool.session():
        env = await started(sandbox=pool)
        waiting = asyncio.create_task(env.open_sandbox())
        await asyncio.wait([waiting], timeout=0.1)
        await env.close()
    with pytest.raises(EnvError, match="the environment is closed"):
        await waiting
    async with asyncio.timeout(DEADLINE_S), pool.session():
        pass


@pytest.mark.parametrize("source", [UNSAFE, SandboxPool(UNSAFE, max_running=1)])
async def test_a_task_names_the_image_of_its_sandbox(
    source: SandboxPool | SandboxSpec,
) -> None:
    task = replace(TASK, info={"sandbox_image": "python:3.12"})
    with pytest.raises(
        ConfigError, match=r"image='python:3.12' needs a backend with images"
    ):
        await ToolEnv(task, sandbox=source).open_sandbox()


async def test_a_sandbox_where_none_was_given_is_refused() -> None:
    with pytest.raises(EnvError, match=r"given no sandbox; pass ToolEnv\(sandbox="):
        await (await started()).open_sandbox()


def test_a_tool_without_its_sandbox_is_refused() -> None:
    with pytest.raises(
        EnvError, match=r"tool 'python' needs a sandbox, got none; pass ToolEnv\(sandbox="
    ):
        ToolEnv(TASK, tools=[PythonTool()])


def test_a_task_without_messages_is_refused() -> None:
    with pytest.raises(EnvError, match="task 'empty' has no messages"):
        ToolEnv(Task("empty"))


def test_two_system_prompts_are_refused() -> None:
    with pytest.raises(EnvError, match="brings a system prompt of its own"):
        ToolEnv(Task("t", ({"role": "system", "content": "a"},)), system_prompt="b")


def test_it_keeps_the_contract() -> None:
    check_env(
        EnvSpec(ToolEnv, {"tools": [add, draw, Counter], "system_prompt": "Be brief."}),
        TASK,
    )


def test_it_keeps_the_contract_with_a_sandbox() -> None:
    check_env(EnvSpec(ToolEnv, {"tools": [PythonTool()]}, sandbox=UNSAFE), TASK)


async def test_tools_named_by_text_start_from_the_base_dir(tmp_path: Path) -> None:
    function = "def add(a: int, b: int) -> int:\n    return a + b\n"
    source = f"from agentrl.tools import tool\n@tool\n{function}"
    (tmp_path / "mine.py").write_text(source)
    result = await step(CALL, tools=["mine.py:add"], base_dir=tmp_path)

    assert result.observation.messages[0]["content"] == "3"


async def test_a_whole_episode_through_the_driver() -> None:
    env = AsyncEnv(EnvSpec(ToolEnv, {"tools": [add]}).build(TASK))
    await env.reset(seed=1)
    await env.step(act(CALL))

    assert (await env.step(act("It is 3."))).terminated
    await env.close()
