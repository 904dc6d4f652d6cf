"""An OpenEnv server is played over its socket, and what it does wrong is never the policy's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentrl.envs import AsyncEnv, EnvSpec, OpenEnv, TurnLimit, check_env
from agentrl.errors import ConfigError, EnvError, ToolFaultError
from agentrl.rollouts import EpisodeRunner, GroupRequest
from agentrl.types import Action, Task, ToolCall, Trajectory
from tests.envs.openenv_server import (
    Behaviour,
    OddOpenEnv,
    abort,
    at_step,
    close,
    count,
    error,
    flood,
    hang,
    observation,
    odd_openenv,
    sends,
)
from tests.kit.episodes import spoken
from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import rollout_spec, say, scripted

TASK = Task("t", ({"role": "system", "content": "Play."},))


def made(server: OddOpenEnv, task: Task = TASK, **settings: Any) -> OpenEnv:
    return OpenEnv(task, url=server.url, **{"action_field": "message", **settings})


async def test_reward_and_done_are_the_servers() -> None:
    async with odd_openenv() as server:
        env = made(server, Task("t", TASK.messages, info={"env_args": {"level": 2}}))
        opening = await env.reset(seed=2**63)
        results = [
            await env.step(spoken(word)) for word in ("1", "<think>hm</think> 7", "3")
        ]
        await env.close()
        await env.close()
    assert [m["content"] for m in opening.messages] == [
        "Play.",
        f"Seed {2**63}. Count to 3.",
    ]
    told = [result.observation.messages[0]["content"] for result in results]
    assert told == ["You said 1.", "You said 7.", "You said 3."]
    assert [result.reward for result in results] == [0.25, 0.0, 0.25]
    assert [result.terminated for result in results] == [False, False, True]
    assert server.asked == [
        [
            {"type": "reset", "data": {"level": 2, "seed": 2**63}},
            *({"type": "step", "data": {"message": word}} for word in "173"),
            {"type": "close"},
        ]
    ]


async def test_an_action_that_the_server_refuses_is_told_and_costs_a_turn() -> None:
    async with odd_openenv() as server:
        env = TurnLimit(made(server), 2)
        await env.reset(seed=0)
        result = await env.step(spoken("one"))
        assert (result.reward, result.truncated) == (0.0, False)
        assert result.info == {"invalid_action": True}
        (message,) = result.observation.messages
        assert message["content"] == (
            "This is no valid action: message: Input should be a number"
        )
        assert (await env.step(spoken("1"))).info == {"reason": "max_turns"}
        await env.close()


async def test_without_a_field_the_message_is_the_action_as_json() -> None:
    async with odd_openenv() as server:
        env = made(server, action_field=None, observation_field="other")
        opening = await env.reset(seed=0)
        assert opening.messages[-1]["content"] == '{"text": "Seed 0. Count to 3."}'
        assert (await env.step(spoken("1"))).info == {"invalid_action": True}
        assert (await env.step(spoken('{"message": "1"} 2'))).info == {
            "invalid_action": True
        }
        assert (await env.step(spoken('{"message": "1"}'))).reward == 0.25
        await env.close()
    assert len(server.asked[0]) == 3


async def test_the_tool_act_has_the_fields_of_the_servers_action() -> None:
    async with odd_openenv() as server:
        env = made(server, action_field=None, by_tool=True)
        (tool,) = (await env.reset(seed=0)).tools or ()
        assert (tool.name, tool.description) == ("act", "Say a number.")
        assert tool.parameters["properties"] == {"message": {"type": "string"}}
        call = ToolCall("c", "act", {"message": "1"})
        result = await env.step(Action("", {"role": "assistant", "content": ""}, (call,)))
        assert [m["content"] for m in result.observation.messages] == [
            "Done.",
            "You said 1.",
        ]
        assert result.reward == 0.25
        wrong = ToolCall("c", "act", {"number": 1})
        result = await env.step(Action("", {"role": "assistant", "content": ""}, (wrong,)))
        assert result.info == {"invalid_action": True}
        assert "number" in result.observation.messages[0]["content"]
        await env.close()
    assert len(server.asked[0]) == 3


@pytest.mark.parametrize("schema", [None, [], {"observation": {}}])
async def test_a_server_without_a_schema_has_no_tool(schema: Any) -> None:
    async with odd_openenv(schema=schema) as server:
        env = made(server, action_field=None, by_tool=True)
        with pytest.raises(
            EnvError, match=r"OpenEnv\.by_tool needs the schema of an action"
        ):
            await env.reset(seed=0)
        await env.close()


async def test_a_reward_of_the_reset_counts_with_the_first_step() -> None:
    async def begin(connection: Any, request: Any) -> None:
        connection.said = 0
        await connection.send(observation("Go.", 0.5))

    async with odd_openenv(at_step(0, begin)) as server:
        env = made(server)
        await env.reset(seed=0)
        assert [(await env.step(spoken(word))).reward for word in "12"] == [0.75, 0.25]
        await env.close()


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (hang, r"did not answer step within OpenEnv\.deadline_s=0\.2"),
        (abort, "closed the socket during step"),
        (close, "closed the socket during step .*out of order"),
        (sends("{"), "must answer in OpenEnv's protocol.* sent '{'"),
        (sends("[]"), "must answer in OpenEnv's protocol"),
        (sends(b"\0\1"), "sent 2 bytes"),
        (sends('{"type": "state", "data": {}}'), "must answer in OpenEnv's protocol"),
        (sends('{"type": "observation", "data": {"observation": {}}}'), "done='None'"),
        (sends(observation("x", "much")), "reward='much'"),
        (sends(observation("x", float("nan"))), "must answer in OpenEnv's protocol"),
        (sends(observation("x", 10**400)), "reward='?1000"),
        (sends(observation("x", 1.0, "yes")), "done='yes'"),
        (sends("[" * 100_000), "nested too deeply"),
        (sends(observation("x" * 5000)), r"OpenEnv\.max_message_bytes=2000"),
        (sends(error("SESSION_ERROR", "lost it")), "answered SESSION_ERROR: lost it"),
        (sends(error("CAPACITY_REACHED")), "answered CAPACITY_REACHED"),
    ],
)
async def test_what_a_server_does_wrong_is_named_and_nothing_is_sent_twice(
    behaviour: Behaviour, text: str
) -> None:
    async with odd_openenv(at_step(2, behaviour)) as server:
        env = made(
            server, deadline_s=0.2, max_message_bytes=2000 if "bytes=" in text else 2**20
        )
        await env.reset(seed=0)
        await env.step(spoken("1"))
        with pytest.raises(ToolFaultError, match=text) as caught:
            await env.step(spoken("2"))
        assert (caught.value.by_call, caught.value.alone) == (True, True)
        assert f"the server {server.url}" in str(caught.value)
        await env.close()
    (asked,) = server.asked
    assert [one["data"] for one in asked if one["type"] == "step"] == [
        {"message": "1"},
        {"message": "2"},
    ]


async def test_a_message_that_nobody_asked_for_is_no_answer() -> None:
    async with odd_openenv(at_step(1, flood)) as server:
        env = made(server)
        await env.reset(seed=0)
        await env.step(spoken("1"))
        with pytest.raises(ToolFaultError, match="that nobody asked for") as caught:
            await env.step(spoken("2"))
        assert not caught.value.by_call
        await env.close()
    assert [one["type"] for one in server.asked[0]][:2] == ["reset", "step"]
    assert {"message": "2"} not in [one.get("data") for one in server.asked[0]]


async def test_a_socket_that_closed_between_two_turns_is_not_the_actions_doing() -> None:
    closed = asyncio.Event()

    async def answer_and_close(connection: Any, request: Any) -> None:
        await count(connection, request)
        await connection.close()
        closed.set()

    async with odd_openenv(at_step(1, answer_and_close)) as server:
        env = made(server)
        await env.reset(seed=0)
        await env.step(spoken("1"))
        await closed.wait()
        with pytest.raises(ToolFaultError, match="between two turns") as caught:
            await env.step(spoken("2"))
        assert not caught.value.by_call
        await env.close()


async def test_an_environment_that_raises_there_is_as_one_that_raises_here() -> None:
    raises = sends(error("EXECUTION_ERROR", "division by zero"))
    async with odd_openenv(at_step(1, raises)) as server:
        env = AsyncEnv(made(server))
        await env.reset(seed=0)
        with pytest.raises(EnvError, match="raised: division by zero"):
            await env.step(spoken("1"))
        await env.close()


@pytest.mark.parametrize(
    ("behaviour", "kind", "text"),
    [
        (hang, ToolFaultError, "did not answer reset"),
        (abort, ToolFaultError, "closed the socket during reset"),
        (sends(error("FACTORY_ERROR")), ToolFaultError, "answered FACTORY_ERROR"),
        (sends(error("VALIDATION_ERROR", "bad")), EnvError, r"OpenEnv\.env_args: .* bad"),
        (sends(observation("x", done=True)), EnvError, "says done in its answer to reset"),
    ],
)
async def test_a_reset_that_fails_is_not_sent_again(
    behaviour: Behaviour, kind: type[Exception], text: str
) -> None:
    async with odd_openenv(behaviour) as server:
        env = made(server, deadline_s=0.2)
        with pytest.raises(kind, match=text):
            await env.reset(seed=0)
        await env.close()
    assert [one["type"] for asked in server.asked for one in asked].count("reset") == 1


async def test_an_episode_waits_for_a_place() -> None:
    async with odd_openenv(max_sessions=1) as server:
        first, second = made(server), made(server)
        await first.reset(seed=1)
        waiting = asyncio.create_task(second.reset(seed=2))
        while server.refused < 2:
            await asyncio.sleep(0.01)
        await first.close()
        assert "Seed 2." in (await waiting).messages[-1]["content"]
        await second.close()
    assert [asked[0]["data"]["seed"] for asked in server.asked] == [1, 2]


async def test_a_server_that_stays_full_is_given_up() -> None:
    async with odd_openenv(max_sessions=0) as server:
        env = made(server, wait_s=0.3)
        with pytest.raises(ToolFaultError, match="CAPACITY_REACHED: at capacity") as caught:
            await env.reset(seed=0)
        assert "OpenEnv.wait_s=0.3" in str(caught.value)
        await env.close()
    assert server.refused > 1


async def test_an_episode_waits_for_a_server_that_is_not_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    env = OpenEnv(TASK, url=f"ws://127.0.0.1:{port}/ws", action_field="message")
    waiting = asyncio.create_task(env.reset(seed=0))
    while not caplog.records:
        await asyncio.sleep(0.01)
    assert vars(caplog.records[0])["event"] == "openenv_waits"
    async with odd_openenv(port=port) as server:
        await waiting
        await env.close()
    assert [one["type"] for one in server.asked[0]] == ["reset", "close"]


async def test_another_server_at_the_url_is_named() -> None:
    async with odd_openenv() as server:
        env = OpenEnv(TASK, url=f"{server.url}/elsewhere", action_field="message")
        with pytest.raises(
            EnvError, match=r"OpenEnv\.url: .* answered 404 at /ws"
        ) as caught:
            await env.reset(seed=0)
        assert not caught.value.retryable
        await env.close()


def test_settings_that_break_a_rule_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"OpenEnv\.url .* got 'localhost:8000'"):
        OpenEnv(TASK, url="localhost:8000")
    with pytest.raises(ConfigError, match=r"OpenEnv\.action_field must be left out"):
        OpenEnv(TASK, url="http://h", action_field="a", by_tool=True)
    with pytest.raises(ConfigError, match=r"OpenEnv\.deadline_s must be more than 0"):
        OpenEnv(TASK, url="http://h", deadline_s=0)


@pytest.mark.parametrize("by_tool", [False, True])
async def test_the_contract_is_kept(by_tool: bool) -> None:
    async with odd_openenv() as server:
        settings = {"by_tool": True} if by_tool else {"action_field": "message"}
        spec = EnvSpec(OpenEnv, {"url": server.url, **settings})
        await asyncio.to_thread(check_env, spec, TASK)
    assert server._open == 0


async def played(server: OddOpenEnv, words: list[str]) -> Any:
    """A group of one episode, and those that failed before."""
    turns = iter(words)
    spec = rollout_spec(
        env=EnvSpec(
            OpenEnv, {"url": server.url, "action_field": "message", "deadline_s": 5.0}
        ),
        reward=lambda view: 0.0,
        max_retries=2,
    )
    runner = EpisodeRunner(spec, scripted(lambda request: say(next(turns))))
    try:
        runner.submit([GroupRequest(0, TASK, 1)])
        (outcome,) = await asyncio.to_thread(runner.collect, DEADLINE_S)
    finally:
        await asyncio.to_thread(runner.close)
    return outcome


def ends(outcome: Any) -> list[tuple[str, float | None]]:
    both: list[Trajectory] = [*outcome.retried, *outcome.group.trajectories]
    return [(str(one.status), one.reward) for one in both]


async def test_an_episode_whose_socket_closes_fails_without_a_reward_and_is_played_again() -> (
    None
):
    async with odd_openenv(at_step(2, abort), count) as server:
        outcome = await played(server, ["1", "2", "1", "2", "3"])
    assert ends(outcome) == [("failed(tool)", None), ("terminated", 0.75)]
    assert json.dumps(server.asked[0]).count('"step"') == 2


async def test_a_server_that_dies_twice_under_an_episodes_own_action_is_its_doing() -> None:
    async with odd_openenv(at_step(2, abort), at_step(2, abort)) as server:
        outcome = await played(server, ["1", "2", "1", "9"])
    assert ends(outcome) == [("failed(tool)", None), ("truncated(tool_crash)", 0.25)]
