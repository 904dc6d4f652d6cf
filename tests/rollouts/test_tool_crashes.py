"""A service that fails under a tool's call: ours, until it dies under one episode's calls again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentrl.envs import EnvSpec, ToolEnv
from agentrl.tools import tool
from agentrl.types import Trajectory
from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import KEY, call, play, say
from tests.tools.http_service import HttpService, service

SCRIPT = [say(call("ask")), say(call("ask")), say("done")]


def asking(up: HttpService | str, name: str) -> EnvSpec:
    url = up if isinstance(up, str) else up.url

    def ask() -> str:
        """Ask."""
        answer = httpx.get(url, timeout=DEADLINE_S)
        answer.raise_for_status()
        return answer.text

    made = tool(ask, name="ask")
    return EnvSpec(ToolEnv, {"tools": [made], "endpoints": [url]})


async def attempts(env: EnvSpec, most: int = 3) -> list[Trajectory]:
    """As the runner makes them."""
    played: list[Trajectory] = []
    for attempt in range(most):
        previous = played[-1] if played else None
        key = replace(KEY, attempt=attempt)
        played.append(await play(SCRIPT, env=env, key=key, previous=previous))
        if played[-1].status.kind != "failed":
            break
    return played


def ends(played: list[Trajectory]) -> list[str]:
    return [str(one.status) for one in played]


async def test_a_service_that_died_once_is_ours_and_the_next_attempt_goes_on() -> None:
    with service(200, "die", 200) as up:
        played = await attempts(asking(up, "once"))
    assert ends(played) == ["failed(tool)", "terminated"]
    assert (played[0].reward, played[0].info["retryable"]) == (None, True)
    assert played[1].reward is not None


async def test_one_that_answers_in_between_and_dies_again_is_the_policys_doing() -> None:
    with service(200, "die", 200, "die") as up:
        played = await attempts(asking(up, "twice"))
    assert ends(played) == ["failed(tool)", "truncated(tool_crash)"]
    assert played[1].reward is not None
    assert len(played[1].turns) == 2


@pytest.mark.parametrize("script", [("die",), (503,), (200, 503)])
async def test_one_that_is_gone_is_never_a_reward(script: Any) -> None:
    with service(*script) as up:
        played = await attempts(asking(up, "gone"))
    assert ends(played) == ["failed(tool)"] * 3
    assert [one.reward for one in played] == [None] * 3


async def test_one_that_cannot_be_reached_is_never_a_reward() -> None:
    env = asking(f"http://127.0.0.1:{free_port()}", "closed")
    assert ends(await attempts(env, 2)) == ["failed(tool)"] * 2


@pytest.mark.parametrize(
    ("same", "end"), [(True, "truncated(tool_crash)"), (False, "failed(tool)")]
)
async def test_among_others_it_takes_the_same_call_in_every_attempt(
    same: bool, end: str
) -> None:
    inside = asyncio.Event()
    leave = asyncio.Event()

    @tool
    async def ask(key: str = "") -> str:
        """Ask."""
        if key == "other":
            inside.set()
            await leave.wait()
            return "ok"
        async with httpx.AsyncClient() as client:
            return (await client.get(up.url)).text

    played: list[Trajectory] = []
    with service(200, "die", 200, "die", 200, "die") as up:
        spec = EnvSpec(ToolEnv, {"tools": [ask], "endpoints": [up.url]})
        others = [say(call("ask", key="other")), say("done")]
        other = asyncio.create_task(
            play(others, env=spec, key=replace(KEY, rollout_index=9))
        )
        await inside.wait()
        for attempt in range(3):
            last = call("ask", key="" if same else str(attempt))
            script = [say(call("ask")), say(last), say("done")]
            previous = played[-1] if played else None
            key = replace(KEY, attempt=attempt)
            played.append(await play(script, env=spec, key=key, previous=previous))
        leave.set()
        assert str((await other).status) == "terminated"
    assert ends(played) == ["failed(tool)", "failed(tool)", end]
