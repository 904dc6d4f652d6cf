"""``OpenEnv`` plays on a server of the package openenv-core, in the agents' environment."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.envs import EnvSpec, OpenEnv, check_env
from agentrl.errors import EnvError, ToolFaultError
from agentrl.types import Action, Task, ToolCall
from tests.agent_server.agents.conftest import python
from tests.kit.episodes import spoken

__all__ = ["python"]

pytestmark = pytest.mark.agents

PROGRAM = Path(__file__).parent / "programs" / "openenv_server.py"
TASK = Task("t")


@pytest.fixture(scope="module")
def url(python: str) -> Iterator[str]:
    """The URL of a server of two sessions."""
    command = [python, str(PROGRAM), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the server ended before it listened"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


async def test_an_episode_is_played_as_the_server_says(url: str) -> None:
    env = OpenEnv(TASK, url=url, action_field="number")
    opening = await env.reset(seed=14)
    assert opening.messages == ({"role": "user", "content": "Count from 4."},)
    refused = await env.step(spoken("four"))
    assert refused.info == {"invalid_action": True}
    assert "number: Input should be a valid integer" in str(refused.observation.messages)
    results = [await env.step(spoken(word)) for word in ("4", "7", "6")]
    assert [(r.reward, r.terminated) for r in results] == [
        (0.5, False),
        (0.0, False),
        (0.5, True),
    ]
    assert results[0].observation.messages[0]["content"] == "You said 4."
    await env.close()


async def test_the_tool_act_is_that_of_the_servers_schema(url: str) -> None:
    env = OpenEnv(TASK, url=url, by_tool=True)
    (tool,) = (await env.reset(seed=0)).tools or ()
    assert tool.description == "Say a number."
    assert list(tool.parameters["properties"]) == ["number"]
    call = ToolCall("c", "act", {"number": 0})
    result = await env.step(Action("", {"role": "assistant", "content": ""}, (call,)))
    assert result.reward == 0.5
    await env.close()


async def test_an_environment_that_raises_there_is_named(url: str) -> None:
    env = OpenEnv(TASK, url=url, action_field="number")
    await env.reset(seed=0)
    with pytest.raises(EnvError, match="raised: 13 brings bad luck"):
        await env.step(spoken("13"))
    await env.close()


async def test_a_third_episode_waits_for_one_of_two_sessions(url: str) -> None:
    envs = [OpenEnv(TASK, url=url, action_field="number") for _ in range(3)]
    for env in envs[:2]:
        await env.reset(seed=0)
    impatient = OpenEnv(TASK, url=url, action_field="number", wait_s=0.2)
    with pytest.raises(ToolFaultError, match="CAPACITY_REACHED"):
        await impatient.reset(seed=0)
    waiting = asyncio.create_task(envs[2].reset(seed=3))
    await envs[0].close()
    assert (await waiting).messages[0]["content"] == "Count from 3."
    for env in envs[1:]:
        await env.close()


@pytest.mark.parametrize("settings", [{"by_tool": True}, {"action_field": "number"}, {}])
def test_the_contract_is_kept(url: str, settings: dict[str, object]) -> None:
    check_env(EnvSpec(OpenEnv, {"url": url, **settings}), TASK)
