"""Toolsets: one instance an episode, set up and closed around it, and its state through a
checkpoint.
"""

from __future__ import annotations

import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import AsyncEnv, EpisodeView, ToolEnv
from agentrl.envs.wrappers import Wrapper
from agentrl.errors import EnvError, ToolError
from agentrl.tools import HermesParser, ToolContext, ToolFactory, ToolReference, tool
from agentrl.tools.factory import ToolClass
from agentrl.types import Action, Status, Task

TASK = Task("t-1", ({"role": "user", "content": "hi"},), info={"euro": 5})
DONE = Status("terminated")


class Bank:
    """Keeps one account."""

    def __init__(self, task: Task, context: ToolContext, fee: int = 0) -> None:
        self.log: list[str] = task.info.get("log", [])
        self.euro = task.info["euro"]
        self.fee = fee
        context.state["opened"] = task.id

    async def setup(self, context: ToolContext) -> None:
        self.log.append(f"setup of {context.episode_id}")

    @tool
    def deposit(self, euro: int) -> int:
        """Pay in.

        Args:
            euro: how much.
        """
        self.euro += euro - self.fee
        return self.euro

    @tool(name="balance")
    async def tell(self, context: ToolContext) -> str:
        """Tell what there is."""
        return f"{self.euro} of {context.state['opened']}"

    def helper(self) -> int:
        return self.deposit(1)

    def state_dict(self) -> dict[str, Any]:
        return {"euro": self.euro}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.euro = state["euro"]

    def close(self) -> None:
        self.log.append("close")


def act(*calls: str) -> Action:
    text = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
    parsed = HermesParser().parse(text)
    return Action(text, parsed.message, parsed.tool_calls, parsed.problems)


DEPOSIT = '{"name": "deposit", "arguments": {"euro": 2}}'
BALANCE = '{"name": "balance", "arguments": {}}'


async def said(env: ToolEnv | AsyncEnv, *calls: str) -> list[Any]:
    result = await env.step(act(*calls))
    return [message["content"] for message in result.observation.messages]


async def test_an_instance_an_episode_shares_its_state_between_its_tools() -> None:
    one, other = ToolEnv(TASK, tools=[Bank]), ToolEnv(TASK, tools=[Bank])
    opening = await one.reset(seed=0)
    await other.reset(seed=0)

    assert [spec.name for spec in opening.tools or ()] == ["deposit", "balance"]
    assert list((opening.tools or ())[0].parameters["properties"]) == ["euro"]
    assert await said(one, DEPOSIT) == ["7"]
    assert await said(one, BALANCE) == ["7 of t-1"]
    assert await said(other, BALANCE) == ["5 of t-1"]


async def test_setup_comes_once_before_the_calls_and_close_once_at_the_end() -> None:
    log: list[str] = []
    env = ToolEnv(Task("t", TASK.messages, info={"euro": 1, "log": log}), tools=[Bank])
    env.episode_id = "e-1"
    assert log == []
    await env.reset(seed=0)
    await said(env, DEPOSIT, BALANCE)
    await env.close()
    await env.close()
    assert log == ["setup of e-1", "close"]


async def test_a_synchronous_close_holds_up_no_event_loop() -> None:
    @tool
    class Slow:
        """Closes in its own time."""

        def __call__(self) -> str:
            return ""

        def close(self) -> None:
            closed_in.append(threading.current_thread())

    closed_in: list[threading.Thread] = []
    await ToolEnv(TASK, tools=[Slow]).close()
    (thread,) = closed_in
    assert thread is not threading.current_thread()


async def test_its_methods_are_still_called_as_python_calls_them() -> None:
    bank = Bank(TASK, ToolContext())
    assert (
        bank.deposit(3),
        bank.helper(),
        await bank.tell(ToolContext(state={"opened": 1})),
    ) == (
        8,
        9,
        "9 of 1",
    )
    assert Bank.deposit(bank, 1) == 10


async def test_a_reward_reads_what_tools_keep() -> None:
    env = AsyncEnv(Wrapper(ToolEnv(TASK, tools=[Bank])))
    await env.reset(seed=0)
    await said(env, DEPOSIT)

    assert EpisodeView(TASK, (), (), DONE, env.env).tool_state["opened"] == "t-1"
    with pytest.raises(
        EnvError, match="got none, since the episode is scored from its record"
    ):
        _ = EpisodeView(TASK, (), (), DONE).tool_state


async def test_a_saved_episode_goes_on_with_the_state_of_its_toolset_and_of_its_tools() -> (
    None
):
    before = AsyncEnv(ToolEnv(TASK, tools=[Bank]))
    await before.reset(seed=0)
    await said(before, DEPOSIT)
    before.env.tool_state["opened"] = "another"  # type: ignore[attr-defined]
    saved = await before.save()
    log: list[str] = []
    task = Task("t-1", TASK.messages, info={"euro": 5, "log": log})
    after = AsyncEnv(ToolEnv(task, tools=[Bank]))
    await after.restore(saved)

    assert await said(after, BALANCE) == ["7 of another"]
    assert log == ["setup of "]


async def test_one_without_a_state_dict_cannot_be_saved() -> None:
    class Plain:
        @tool
        def ping(self) -> str:
            """Ping."""
            return "pong"

    env = AsyncEnv(ToolEnv(TASK, tools=[Plain]))
    await env.reset(seed=0)
    with pytest.raises(EnvError, match=r"ToolEnv\.state_dict gives none here"):
        await env.save()


async def test_a_function_keeps_its_state_in_the_episodes() -> None:
    @tool
    def count(context: ToolContext) -> int:
        """Count."""
        context.state["n"] = context.state.get("n", 0) + 1
        return int(context.state["n"])

    call = '{"name": "count", "arguments": {}}'
    before, other = AsyncEnv(ToolEnv(TASK, tools=[count])), ToolEnv(TASK, tools=[count])
    await before.reset(seed=0)
    await other.reset(seed=0)
    assert [await said(before, call), await said(before, call)] == [["1"], ["2"]]
    assert await said(other, call) == ["1"]
    after = AsyncEnv(ToolEnv(TASK, tools=[count]))
    await after.restore(await before.save())
    assert await said(after, call) == ["3"]


async def test_a_setup_that_raises_fails_the_episode_as_the_tools() -> None:
    class Broken:
        def setup(self) -> None:
            raise OSError("no disk")

        @tool
        def ping(self) -> str:
            """Ping."""
            return "pong"

    with pytest.raises(ToolError, match=r"Broken\.setup raised OSError: no disk") as caught:
        await ToolEnv(TASK, tools=[Broken]).reset(seed=0)
    assert (caught.value.boundary, caught.value.retryable) == ("tool", True)


def test_a_class_is_one_tool_or_a_toolset() -> None:
    with pytest.raises(
        ToolError, match="Both is a toolset of ping, and takes no name and no __ca"
    ):

        @tool
        class Both:
            def __call__(self) -> str:
                """Call."""
                return ""

            @tool
            def ping(self) -> str:
                """Ping."""
                return ""


def test_the_limits_of_a_toolset_hold_where_a_tool_sets_none() -> None:
    @tool(deadline_s=3.0)
    class Two:
        @tool
        def one(self) -> str:
            """One."""
            return ""

        @tool(deadline_s=9.0)
        def two(self) -> str:
            """Two."""
            return ""

    assert [made.deadline_s for made in Two.build()] == [3.0, 9.0]


async def test_one_named_in_a_file_takes_args_and_pickles(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        textwrap.dedent("""
            from agentrl.tools import tool

            class Pad:
                def __init__(self, task, lines):
                    self.lines = [task.id] * lines

                @tool
                def read(self) -> str:
                    '''Read.'''
                    return " ".join(self.lines)
        """)
    )
    entry = ToolReference(function="task.py:Pad", args={"lines": 2})
    env = ToolEnv(TASK, tools=[entry], base_dir=tmp_path)
    await env.reset(seed=0)
    assert await said(env, '{"name": "read", "arguments": {}}') == ["t-1 t-1"]
    with pytest.raises(
        ToolError, match=r"missing a required argument: 'lines'; its arguments are"
    ):
        ToolEnv(TASK, tools=["task.py:Pad"], base_dir=tmp_path)


def test_a_subclass_overrides_a_tool_and_adds_one() -> None:
    class More(Bank):
        deposit = None  # type: ignore[assignment]

        @tool
        def rob(self) -> str:
            """Rob."""
            return ""

    tools = ToolFactory(ToolClass(More)).build(ToolContext(task=TASK))
    assert [made.spec.name for made in tools] == ["balance", "rob"]
