"""Limits of tools: places and rate over all episodes, calls, seconds and tokens of one."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.envs import AsyncEnv, EnvSpec, ToolEnv
from agentrl.errors import ToolError
from agentrl.run.build import LiveObjects, env_spec
from agentrl.tools import HermesParser, ToolExecutor, ToolReference, tool
from agentrl.tools import executor as executor_module
from agentrl.types import Action, Task, ToolCall, ToolResult
from agentrl.types.clock import WaitClock, clock_paused, counted_by
from tests.rollouts.bytewise import call, play, say

TASK = Task("t", ({"role": "user", "content": "hi"},))


async def run(executor: ToolExecutor, *names: str, **settings: Any) -> list[ToolResult]:
    made = [ToolCall(f"call_{index}", name, {}) for index, name in enumerate(names)]
    return [
        one.result for one in await executor.run(made, **settings) if one.result is not None
    ]


class Crowd:
    """How many calls are inside at once, over threads and event loops."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.total = 0

    async def enter(self) -> None:
        with self.lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        with self.lock:
            self.now -= 1


async def test_places_are_shared_by_all_episodes_of_the_process_on_every_loop() -> None:
    crowd = Crowd()

    @tool(max_concurrent=3)
    async def three_at_once() -> str:
        """Three."""
        await crowd.enter()
        return "ok"

    async def episodes() -> list[ToolResult]:
        runs = [run(ToolExecutor([three_at_once]), "three_at_once") for _ in range(20)]
        return [result for results in await asyncio.gather(*runs) for result in results]

    threads = [asyncio.to_thread(asyncio.run, episodes()) for _ in range(3)]
    results = [result for found in await asyncio.gather(*threads) for result in found]
    assert (len(results), crowd.total, crowd.most) == (60, 60, 3)
    assert all(result.metrics and result.metrics["queued_s"] >= 0 for result in results)
    assert max(result.metrics["queued_s"] for result in results if result.metrics) > 0.01


async def test_the_wait_for_a_place_counts_for_no_deadline_and_a_cancelled_one_takes_none() -> (
    None
):
    inside = asyncio.Event()
    leave = asyncio.Event()

    @tool(max_concurrent=1, deadline_s=0.2)
    async def one_at_once() -> str:
        """One."""
        inside.set()
        await leave.wait()
        return "ok"

    @tool(max_concurrent=1, deadline_s=30, name="one_at_once")
    async def holder() -> str:
        """One."""
        inside.set()
        await leave.wait()
        return "held"

    first = asyncio.create_task(run(ToolExecutor([holder]), "one_at_once"))
    await inside.wait()
    waits = WaitClock()
    with counted_by(waits):
        waiting = asyncio.create_task(run(ToolExecutor([one_at_once]), "one_at_once"))
        given_up = asyncio.create_task(run(ToolExecutor([one_at_once]), "one_at_once"))
    await asyncio.sleep(0.3)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    leave.set()
    assert [result.content for result in [*await first, *await waiting]] == ["held", "ok"]
    assert waits.wait_s > 0.25
    assert [r.content for r in await run(ToolExecutor([one_at_once]), "one_at_once")] == [
        "ok"
    ]


async def test_the_rate_holds_over_all_episodes() -> None:
    began: list[float] = []

    @tool(calls_per_s=50)
    async def paced() -> str:
        """Paced."""
        began.append(time.monotonic())
        return ""

    # what runs late began no earlier for that
    start = time.monotonic()
    await asyncio.gather(*(run(ToolExecutor([paced]), "paced") for _ in range(6)))
    assert max(began) - start >= 5 / 50 - 0.005


async def test_an_episode_may_make_so_many_calls() -> None:
    @tool(max_calls=2)
    def hint() -> str:
        """Hint."""
        return "warm"

    executor = ToolExecutor([hint])
    assert [r.error for r in await run(executor, "hint", "hint", "hint")] == [
        None,
        None,
        "call_limit",
    ]
    (last,) = await run(executor, "hint")
    assert last.content == "Error: hint may be called 2 times, and was. Go on without it."
    assert (await run(ToolExecutor([hint]), "hint"))[0].error is None


async def test_the_seconds_of_an_episode_are_spent_by_all_its_calls() -> None:
    @tool
    async def rest(context: Any = None) -> str:
        """Rest."""
        await asyncio.sleep(0.1)
        return "rested"

    @tool
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    executor = ToolExecutor([rest, hang], max_seconds=0.5)
    assert (await run(executor, "rest"))[0].error is None
    start = time.monotonic()
    assert (await run(executor, "hang"))[0].error == "timeout"  # ended by what was left
    assert time.monotonic() - start < 60
    (late,) = await run(executor, "rest")
    assert (late.error, late.content) == (
        "call_limit",
        "Error: the 0.5 s that tools may take are spent. Answer without them.",
    )


async def test_neither_waits_for_others_nor_pauses_before_a_retry_spend_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor_module, "backoff_s", lambda *_, **__: 0.1)
    waited = [0.1]

    @tool(idempotent=True)
    async def waits() -> str:
        """Waits for others, and is tried again."""
        start = time.monotonic()
        with clock_paused():
            await asyncio.sleep(0.1)
            waited.append(time.monotonic() - start)
        if len(waited) == 2:
            raise ToolError("not yet", retryable=True)
        return ""

    one = ToolExecutor([waits], max_seconds=60.0)
    began = time.monotonic()
    (result,) = await run(one, "waits")
    took = time.monotonic() - began
    assert (result.error, len(waited)) == (None, 3)
    assert one.usage["seconds"] <= took - sum(waited) + 0.01


async def test_what_was_used_is_saved_with_the_episode() -> None:
    @tool(max_calls=1)
    def hint() -> str:
        """Hint."""
        return "warm"

    text = call("hint")
    parsed = HermesParser().parse(text)
    action = Action(text, parsed.message, parsed.tool_calls, parsed.problems)
    before, after = (AsyncEnv(ToolEnv(TASK, tools=[hint])) for _ in range(2))
    await before.reset(seed=0)
    await before.step(action)
    await after.restore(await before.save())
    assert (await after.step(action)).info == {"tool_errors": {"call_limit": 1}}


@tool(max_output_tokens=6)
def speak() -> str:
    """Speak."""
    return "0123456789"


async def test_an_output_keeps_so_many_tokens_of_head_and_tail() -> None:
    # two characters a token
    executor = ToolExecutor([speak])
    executor.token_ends = lambda text: range(2, len(text) + 1, 2)
    assert (await run(executor, "speak"))[0].content == "0123456789"
    executor.token_ends = lambda text: range(1, len(text) + 1)
    (result,) = await run(executor, "speak")
    assert result.content == "012\n[... 4 of 10 tokens left out ...]\n789"
    assert result.truncated


async def test_an_episode_counts_by_its_own_tokenizer() -> None:
    trajectory = await play([say(call("speak")), say("done")], tools=[speak])
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert "4 of 10 tokens left out" in record.result.content


async def test_tokens_need_a_tokenizer() -> None:
    with pytest.raises(
        ToolError, match="'speak': max_output_tokens needs the model's tokenizer"
    ):
        await run(ToolExecutor([speak]), "speak")


@pytest.mark.parametrize(
    "limits",
    [{"max_calls": 0}, {"calls_per_s": -1.0}, {"max_concurrent": 0}, {"deadline_s": 0}],
)
def test_a_limit_must_be_above_0(limits: Any) -> None:
    (name,) = limits
    with pytest.raises(ToolError, match=rf"tool 'ask': {name} must be above 0, got"):

        @tool(**limits)
        def ask() -> str:
            """Ask."""
            return ""


def test_a_reference_sets_limits_in_place_of_the_tools_own(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "from agentrl.tools import tool\n"
        "@tool(max_calls=3, deadline_s=7)\ndef one() -> str:\n    '''One.'''\n    return ''\n"
        "class Two:\n    @tool\n    def two(self) -> str:\n        '''Two.'''\n        return ''\n"
    )
    entries = [
        ToolReference(function="task.py:one", max_calls=5, idempotent=True),
        ToolReference(function="task.py:Two", max_concurrent=2),
    ]
    env = ToolEnv(TASK, tools=entries, base_dir=tmp_path)
    one, two = env._executor._known.values()
    assert (one.max_calls, one.deadline_s, one.idempotent) == (5, 7, True)
    assert two.max_concurrent == 2


def test_the_configuration_sets_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: {train: t.jsonl}\n"
        "env:\n  max_tool_seconds: 20\n  endpoints: http://retriever:8000\n"
        "  tools: [{function: python, max_calls: 4, max_output_tokens: 200}]\n"
    )
    (stage,) = load_config(config).resolved_stages()
    spec = env_spec(stage, LiveObjects())
    assert isinstance(spec, EnvSpec)
    (reference,) = spec.kwargs["tools"]
    assert reference.limits == {"max_calls": 4, "max_output_tokens": 200}
    assert spec.kwargs["max_tool_seconds"] == 20
    assert spec.kwargs["endpoints"] == ("http://retriever:8000",)
