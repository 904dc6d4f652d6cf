"""OpenAIEngine: messages in, message out, over real HTTP; the same loop, and no token that could be
trained.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.openai import OpenAIEngine
from agentrl.errors import EngineError
from agentrl.llm import ChatServerSpec
from agentrl.rollouts import EpisodeContext, run_episode
from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.tools.parsers import load_parser
from agentrl.types import GenerateRequest, SamplingParams, Trajectory, frozen_ints
from tests.agent_server.served_policy import serving
from tests.llm.odd_server import Reply, failed, odd_server, said
from tests.rollouts.bytewise import KEY, TASK, add, call, rollout_spec, say

ASKED = GenerateRequest(
    "r", "s", frozen_ints(()), SamplingParams(8), seed=0, messages=TASK.messages
)


async def play_at(
    url: str, *, sampling: SamplingParams | None = None, **settings: Any
) -> Trajectory:
    """One episode whose policy is the server's."""
    spec = replace(
        rollout_spec(
            tools=[add], env_settings={"describe_tools_in_prompt": True}, **settings
        ),
        renderer=None,
    )
    engine = OpenAIEngine(
        ChatServerSpec(url, "m", max_backoff_s=0.01, max_retries=2, timeout_s=20.0)
    )
    parts = EpisodeContext(spec, engine, None, load_parser("none"), spec.rubric.build())
    try:
        return await run_episode(parts, TASK, KEY, sampling=sampling)
    finally:
        await engine.close()


def tool_call(name: Any, arguments: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


async def test_an_episode_on_another_agentrl_over_http() -> None:
    # each request there is an episode of its own
    script = iter([say(call("add", a=1, b=2)), say("3")])
    async with serving(lambda request: next(script)) as served:
        trajectory = await play_at(f"{served.url}/v1")
    assert [turn.text for turn in trajectory.turns] == ["", "3"]
    assert [
        record.result and record.result.content for record in trajectory.turns[0].calls
    ] == ["3"]
    assert (str(trajectory.status), trajectory.reward) == ("terminated", 1.0)
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert "restarts" not in trajectory.info


async def test_such_an_episode_has_no_token_to_train() -> None:
    async with odd_server(said("3")) as server:
        trajectory = await play_at(server.url)
    assert (trajectory.samples(), trajectory.num_policy_tokens) == ((), 0)


async def test_the_server_gets_the_whole_conversation_with_its_tools() -> None:
    async with odd_server(
        said(None, calls=[tool_call("add", '{"a": 1, "b": 2}')]), said("3")
    ) as server:
        await play_at(
            server.url,
            sampling=SamplingParams(50, temperature=0.5, top_p=0.9, stop=("END",)),
        )
    first, second = server.asked
    assert first["messages"] == [{"role": "user", "content": "hi"}]
    assert first["tools"] == [add.spec.openai()]
    assert (first["max_tokens"], first["temperature"], first["top_p"], first["stop"]) == (
        50,
        0.5,
        0.9,
        ["END"],
    )
    assert [message["role"] for message in second["messages"]] == [
        "user",
        "assistant",
        "tool",
    ]
    assert (
        second["messages"][1]["tool_calls"][0]["id"]
        == second["messages"][2]["tool_call_id"]
    )


async def test_the_server_is_given_a_schema_that_the_answer_is_to_fit() -> None:
    async with odd_server(said("{}")) as server:
        await play_at(
            server.url, sampling=SamplingParams(50, json_schema='{"type": "object"}')
        )
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }
    assert server.asked[0]["response_format"] == wanted


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (tool_call("add", '{"a": 1'), "bad_arguments"),
        (tool_call("add", "[1]"), "bad_arguments"),
        (tool_call("add", '{"a": 1} x'), "bad_arguments"),
        (tool_call("", "{}"), "missing_name"),
        (tool_call(None, "{}"), "missing_name"),
        ({"id": "x"}, "missing_name"),
    ],
)
async def test_a_malformed_call_is_a_problem_that_the_model_is_told_of(
    made: dict[str, Any], kind: str
) -> None:
    async with odd_server(said("so", calls=[made]), said("3")) as server:
        trajectory = await play_at(server.url)
    problem = trajectory.turns[0].calls[0].problem
    assert problem is not None
    assert problem.kind == kind
    told = server.asked[1]["messages"][-1]
    assert told["role"] == "user"  # no server takes a result without its call
    assert trajectory.turns[0].text.startswith("so")
    assert len(trajectory.turns) == 2


async def test_thoughts_and_counts_are_kept() -> None:
    reply = said("3")
    reply.body["choices"][0]["message"]["reasoning_content"] = "hm"
    async with odd_server(reply) as server:
        trajectory = await play_at(server.url)
    turn = trajectory.turns[0]
    assert turn.message["reasoning_content"] == "hm"
    assert (turn.cached_tokens, turn.timings["request_s"] > 0) == (2, True)


async def test_an_answer_that_was_cut_truncates() -> None:
    async with odd_server(said("3", finish_reason="length")) as server:
        trajectory = await play_at(server.url)
    assert str(trajectory.status) == "truncated(length)"


@pytest.mark.parametrize(
    ("reply", "retryable"),
    [(failed(500), True), (failed(401), False), (Reply(200, "half", cut=2), True)],
)
async def test_a_server_that_fails_fails_the_episode(reply: Reply, retryable: bool) -> None:
    async with odd_server(reply) as server:
        trajectory = await play_at(server.url)
    assert (str(trajectory.status), trajectory.reward) == ("failed(engine)", None)
    assert trajectory.info["retryable"] is retryable
    assert server.url in trajectory.status.detail


async def test_a_conversation_that_grew_too_long_is_the_policys_doing() -> None:
    full = failed(400, "too long", "context_length_exceeded")
    async with odd_server(
        said(None, calls=[tool_call("add", '{"a": 1, "b": 2}')]), full
    ) as server:
        trajectory = await play_at(server.url)
    assert (str(trajectory.status), len(trajectory.turns)) == (
        "truncated(context_tokens)",
        1,
    )


async def test_a_task_that_is_too_long_is_not() -> None:
    async with odd_server(failed(400, "too long", "context_length_exceeded")) as server:
        trajectory = await play_at(server.url)
    assert str(trajectory.status) == "failed(engine)"


async def test_a_slow_server_is_cut_off_by_the_turns_deadline() -> None:
    async with odd_server(
        said(None, calls=[tool_call("add", '{"a": 1, "b": 2}')]), Reply(hang=True)
    ) as server:
        trajectory = await play_at(server.url, turn_timeout_s=1.0)
    assert str(trajectory.status) == "truncated(turn_timeout)"


async def test_a_request_can_be_aborted() -> None:
    async with odd_server(Reply(hang=True)) as server:
        engine = OpenAIEngine(ChatServerSpec(server.url, "m"))
        spec = replace(rollout_spec(), renderer=None)
        parts = EpisodeContext(spec, engine, None, load_parser("none"), spec.rubric.build())
        playing = asyncio.create_task(run_episode(parts, TASK, KEY))
        while not server.asked:
            await asyncio.sleep(0.01)
        await engine.abort([f"{KEY.session_id}/0"])
        trajectory = await playing
        await engine.close()
    assert str(trajectory.status) == "cancelled(aborted)"


async def test_an_id_in_flight_is_refused_and_its_request_goes_on() -> None:
    async with odd_server(Reply(hang=True)) as server:
        engine = OpenAIEngine(ChatServerSpec(server.url, "m"))
        first = asyncio.create_task(engine.generate(ASKED))
        while not server.asked:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="'r' is already in flight"):
            await engine.generate(ASKED)
        await engine.abort(["r"])
        assert (await first).finish_reason == "abort"
        await engine.close()


async def test_such_a_trajectory_is_stored_and_read_back(tmp_path: Path) -> None:
    async with odd_server(
        said(None, calls=[tool_call("add", '{"a": 1, "b": 2}')]), said("3")
    ) as server:
        trajectory = await play_at(server.url)
    run = RunDirectory.create(tmp_path / "run")
    with TrajectoryWriter(run) as writer:
        writer.write(trajectory, 0)
        writer.seal(0)
    stored = TrajectoryReader(run).get(trajectory.id).trajectory
    assert [turn.message for turn in stored.turns] == [
        turn.message for turn in trajectory.turns
    ]
    assert stored.samples() == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"messages": ()}, "messages must be the conversation"),
        (
            {"sampling": SamplingParams(8, stop_token_ids=(3,))},
            "stop_token_ids must be empty",
        ),
        ({"min_version": 2}, "min_version must be 0, got 2"),
    ],
)
async def test_what_only_an_engine_of_ids_does_is_refused(
    changes: dict[str, Any], named: str
) -> None:
    engine = OpenAIEngine(ChatServerSpec("http://127.0.0.1:1/v1", "m"))
    with pytest.raises(EngineError, match=named) as caught:
        await engine.generate(replace(ASKED, **changes))
    assert not caught.value.retryable


async def test_a_request_is_given_up_at_its_deadline() -> None:
    async with odd_server(Reply(hang=True)) as server:
        engine = OpenAIEngine(ChatServerSpec(server.url, "m"))
        with pytest.raises(
            EngineError,
            match=r"spent its deadline_s=0.2 without an answer of model 'm' at http",
        ) as error:
            await engine.generate(replace(ASKED, deadline_s=0.2))
        await engine.close()
    assert error.value.retryable
