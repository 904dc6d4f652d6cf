"""Agent programs as processes: what they are told, how they end, and whose fault that is."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentrl.agent_server import AgentProgramSpec
from agentrl.engines.openai import OpenAIEngine
from agentrl.envs import Rubric
from agentrl.errors import ConfigError, EngineError
from agentrl.llm import ChatServerSpec
from agentrl.rollouts import EpisodeKey, EpisodeRunner, GroupRequest, run_episode
from agentrl.types import Task, Trajectory
from tests.kit.waiting import DEADLINE_S, is_alive, until, until_async
from tests.llm.odd_server import failed, odd_server, said
from tests.rollouts.bytewise import KEY, call, context_of, rollout_spec, say, scripted
from tests.rollouts.speaking_engine import SpeakingEngine

TASK = Task("t", ({"role": "user", "content": "hi"},), answer="secret", info={"hint": 1})

PREAMBLE = """
import json, os, sys, time, urllib.error, urllib.request

def post(url, **body):
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), key)) as answer:
        return json.load(answer)

def ask(*messages, **settings):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return post(url, model=os.environ["OPENAI_MODEL"], messages=list(messages), **settings)["choices"][0]["message"]

def reward(value):
    post(os.environ["AGENTRL_EPISODE_URL"] + "/reward", reward=value)

task = json.load(sys.stdin)
"""  # noqa: E501


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def make(body: str) -> AgentProgramSpec:
        (tmp_path / "agent.py").write_text(PREAMBLE + textwrap.dedent(body))
        return AgentProgramSpec(("python", "agent.py"), cwd=str(tmp_path))

    return make


@asynccontextmanager
async def host(
    engine: Any, rubric: Rubric | None = None, **settings: Any
) -> AsyncIterator[Any]:
    """Parts with an endpoint of their own."""
    parts = context_of(rollout_spec(**settings), engine)
    try:
        yield replace(parts, rubric=rubric or parts.rubric)
    finally:
        await parts.close()


async def play(spec: AgentProgramSpec, engine: Any = None, **settings: Any) -> Trajectory:
    own = {name: settings.pop(name) for name in ("previous",) if name in settings}
    async with host(engine or scripted(lambda request: say("ok")), **settings) as parts:
        return await run_episode(parts, TASK, KEY, env=spec, **own)


async def test_a_program_plays_an_episode_with_tools_and_gives_its_reward(
    program: Any,
) -> None:
    spec = program("""
        messages = task["messages"]
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        while (said := ask(*messages, tools=tools)).get("tool_calls"):
            arguments = [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]]
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": str(given["a"] + given["b"])}
                for call, given in zip(said["tool_calls"], arguments)
            ]
            messages = [*messages, said, *results]
        reward(float(said["content"] == "3"))
    """)  # noqa: E501
    engine = scripted([say(call("add", a=1, b=2)), say("3")])
    trajectory = await play(spec, engine, rubric=Rubric([]))
    assert (str(trajectory.status), trajectory.reward) == ("terminated", 1.0)
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert [turn.text for turn in trajectory.turns][1] == "3"
    for turn, request in zip(trajectory.turns, engine.requests, strict=True):
        made = [
            token for segment in turn.completion for token in segment.token_ids.tolist()
        ]
        assert trajectory.sequence(turn.index).tolist() == [
            *request.token_ids.tolist(),
            *made,
        ]


async def test_a_program_that_reads_streams_is_trained_as_any_other(program: Any) -> None:
    spec = program("""
        from openai import OpenAI

        messages = task["messages"]
        for _ in range(3):
            stream = OpenAI(max_retries=0).chat.completions.create(model="policy", messages=messages, stream=True)
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
    """)  # noqa: E501
    engine = SpeakingEngine(
        [say("one \u00e9"), say("two"), say("three")], lambda n: asyncio.sleep(0.001)
    )
    trajectory = await play(spec, engine)
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 1]
    assert [turn.text for turn in trajectory.turns] == ["one \u00e9", "two", "three"]
    assert len(trajectory.samples()) == 1


async def test_a_program_is_told_its_task_and_never_the_answer(program: Any) -> None:
    trajectory = await play(
        program('ask({"role": "user", "content": json.dumps(task)})'), max_prompt_tokens=500
    )
    told = trajectory.turns[0].observed[0]["content"]
    assert '"id": "t"' in told
    assert '"hint": 1' in told
    assert "secret" not in told


async def test_columns_that_json_lacks_are_told_as_json_or_fail_their_episode(
    program: Any,
) -> None:
    spec = program('ask({"role": "user", "content": json.dumps(task["info"])})')
    told = {"day": date(2024, 5, 1), "price": Decimal("1.50"), "odd": "\ud83d"}
    for info, status in ((told, "terminated"), ({"raw": b"\x89PNG"}, "failed(data)")):
        async with host(
            scripted(lambda request: say("ok")), max_prompt_tokens=500
        ) as parts:
            trajectory = await run_episode(parts, replace(TASK, info=info), KEY, env=spec)
        assert str(trajectory.status) == status
        if status == "terminated":
            said = json.loads(trajectory.turns[0].observed[0]["content"])
            assert said == {"day": "2024-05-01", "price": "1.50", "odd": "\ud83d"}
        else:
            assert "cannot be told to the agent program as JSON" in trajectory.status.detail


async def test_the_rubric_scores_what_the_program_did(program: Any) -> None:
    trajectory = await play(program('ask(*task["messages"])'))
    assert trajectory.rewards == {"length_reward": 2.0}


async def test_a_program_without_a_reward_fails_where_nothing_else_gives_one(
    program: Any,
) -> None:
    trajectory = await play(program('ask(*task["messages"])'), rubric=Rubric([]))
    assert (str(trajectory.status), trajectory.reward) == ("failed(reward)", None)


async def test_a_program_that_breaks_fails_with_its_last_words(program: Any) -> None:
    trajectory = await play(program('ask(*task["messages"]); raise SystemExit("no luck")'))
    assert (str(trajectory.status), trajectory.info["retryable"]) == ("failed(env)", True)
    assert "exited with status 1" in trajectory.status.detail
    assert "no luck" in trajectory.status.detail


async def test_a_program_that_breaks_again_after_the_same_turns_was_broken_by_the_policy(
    program: Any,
) -> None:
    spec = program('ask(*task["messages"]); sys.exit(3)')
    first = await play(spec)
    again = await play(spec, previous=first)
    assert (str(again.status), again.reward) == ("truncated(env_exception)", 2.0)


async def test_a_program_that_never_asks_fails_however_often(program: Any) -> None:
    spec = program("sys.exit(3)")
    first = await play(spec)
    again = await play(spec, previous=first)
    assert (str(first.status), str(again.status)) == ("failed(env)", "failed(env)")
    silent = await play(program("pass"))
    assert "without asking the policy anything" in silent.status.detail


@pytest.mark.parametrize("name", ["no-such-agent", "./agent.sh"])
async def test_a_program_that_is_not_there_or_not_executable_is_a_mistake_of_the_configuration(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "agent.sh").write_text("#!/bin/sh\n")
    trajectory = await play(AgentProgramSpec((name,), cwd=str(tmp_path)))
    assert (str(trajectory.status), trajectory.info["retryable"]) == (
        "failed(config)",
        False,
    )
    assert f"AgentProgramSpec.command=[{name!r}]" in trajectory.status.detail


async def test_a_program_that_ran_out_of_room_was_cut_by_the_policy(program: Any) -> None:
    spec = program("""
        said = ask(*task["messages"])
        ask(*task["messages"], said, {"role": "user", "content": "x" * 500})
    """)
    trajectory = await play(spec, max_response_tokens=100)
    assert (str(trajectory.status), trajectory.reward) == (
        "truncated(max_response_tokens)",
        2.0,
    )


@pytest.mark.parametrize(
    ("settings", "said", "end"),
    [
        ("max_tokens=3", "a long answer", "truncated(length)"),
        ('response_format={"type": "json_object"}', "no JSON", "truncated(breach)"),
        (
            'tools=[{"type": "function", "function": {"name": "add"}}]',
            call("sub"),
            "truncated(breach)",
        ),
    ],
)
async def test_a_program_that_cannot_go_on_from_what_the_policy_said_was_cut_by_it(
    program: Any, settings: str, said: str, end: str
) -> None:
    spec = program(f'ask(*task["messages"], {settings}); sys.exit("what is this?")')
    trajectory = await play(spec, scripted([say(said)]), max_prompt_tokens=1000)
    assert (str(trajectory.status), trajectory.reward is None) == (end, False)
    assert "what is this?" in trajectory.status.detail


async def test_a_program_does_not_send_its_traces_to_openai(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = program(
        'ask({"role": "user", "content": os.environ["OPENAI_AGENTS_DISABLE_TRACING"]})'
    )
    assert (await play(spec)).turns[0].observed[0]["content"] == "1"
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "0")
    assert (await play(spec)).turns[0].observed[0]["content"] == "0"


async def test_a_program_that_asks_as_anthropics_clients_do_is_trained_as_any_other(
    program: Any,
) -> None:
    spec = program("""
        def say(*messages):
            key = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "Content-Type": "application/json"}
            body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 99, "messages": messages}
            url = os.environ["ANTHROPIC_BASE_URL"].split("/episodes")[0] + "/v1/messages"
            asked = urllib.request.Request(url, json.dumps(body).encode(), key)
            with urllib.request.urlopen(asked) as answer:
                return {"role": "assistant", "content": json.load(answer)["content"]}

        said = say(*task["messages"])
        say(*task["messages"], said, {"role": "user", "content": "more"})
    """)
    trajectory = await play(spec)
    assert str(trajectory.status) == "terminated"
    assert [turn.parent for turn in trajectory.turns] == [None, 0]


async def test_a_program_of_strict_keys_is_told_of_an_unknown_one(program: Any) -> None:
    spec = program("""
        ask(*task["messages"])
        try:
            ask(*task["messages"], mystery=1)
        except urllib.error.HTTPError as error:
            reward(float("mystery is not supported" in json.load(error)["error"]["message"]))
    """)
    strict = await play(replace(spec, strict_keys=True), rubric=Rubric([]))
    assert (str(strict.status), strict.reward) == ("terminated", 1.0)
    noted = await play(program('ask(*task["messages"], mystery=1)'))
    assert noted.turns[0].info["ignored"] == {"mystery": 1}


async def test_a_program_that_asks_too_often_is_cut(program: Any) -> None:
    trajectory = await play(program('while True: ask(*task["messages"])'), max_turns=3)
    assert (str(trajectory.status), len(trajectory.turns)) == ("truncated(max_turns)", 3)


async def test_an_engine_that_fails_is_not_the_programs_fault(program: Any) -> None:
    engine = scripted(lambda request: say("ok"), failures={0: EngineError("gone")})
    trajectory = await play(program('ask(*task["messages"])'), engine)
    assert (str(trajectory.status), trajectory.info["retryable"]) == (
        "failed(engine)",
        True,
    )


async def test_a_program_that_hangs_is_ended_with_all_that_it_started(
    program: Any, tmp_path: Path
) -> None:
    spec = program("""
        import subprocess
        ask(*task["messages"])
        child = subprocess.Popen(["sleep", "600"])
        open("pids", "w").write(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    """)
    trajectory = await play(spec, episode_timeout_s=3.0)
    assert (str(trajectory.status), trajectory.reward) == (
        "truncated(episode_timeout)",
        2.0,
    )
    for pid in (tmp_path / "pids").read_text().split():
        await until_async(lambda pid=pid: not is_alive(pid))


async def test_a_program_that_floods_its_output_is_not_blocked(program: Any) -> None:
    spec = program(
        'ask(*task["messages"]); print("x" * 10_000_000); sys.exit("\\n" + "y" * 10_000 + " end")'
    )
    trajectory = await play(spec)
    assert trajectory.status.detail.endswith(" end")
    assert len(trajectory.status.detail) < 5000


async def test_a_program_reaches_its_endpoint_without_a_proxy(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert str((await play(program('ask(*task["messages"])'))).status) == "terminated"


def test_a_runner_plays_programs_side_by_side_and_tries_again_what_broke(
    program: Any, tmp_path: Path
) -> None:
    # the first start of the program breaks, whatever it is asked; all later ones are well
    spec = program("""
        ask(*task["messages"])
        try:
            os.close(os.open("broken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            reward(1.0)
        else:
            sys.exit(7)
    """)
    engine = scripted(lambda request: say("ok"))
    runner = EpisodeRunner(replace(rollout_spec(), env=spec), engine)
    try:
        runner.submit([GroupRequest(0, TASK, 4)])
        outcomes = runner.collect(DEADLINE_S)
    finally:
        runner.close()
    (outcome,) = outcomes
    assert [str(t.status) for t in outcome.group.trajectories] == ["terminated"] * 4
    assert [t.reward for t in outcome.group.trajectories] == [3.0] * 4
    assert [str(t.status) for t in outcome.retried] == ["failed(env)"]


def test_a_group_that_is_cancelled_ends_its_programs(program: Any, tmp_path: Path) -> None:
    spec = program(
        'open("pid", "w").write(str(os.getpid())); ask(*task["messages"]); time.sleep(600)'
    )
    runner = EpisodeRunner(
        replace(rollout_spec(), env=spec), scripted(lambda request: say("ok"))
    )
    try:
        runner.submit([GroupRequest(0, TASK, 1)])
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        runner.cancel([0])
        (outcome,) = runner.collect(DEADLINE_S)
    finally:
        runner.close()
    assert str(outcome.group.trajectories[0].status) == "cancelled(cancelled)"
    until(lambda: not is_alive((tmp_path / "pid").read_text()))


async def test_an_episode_of_a_program_has_a_name_that_nobody_guesses(program: Any) -> None:
    spec = program("""
        import urllib.error
        try:
            post(os.environ["OPENAI_BASE_URL"].split("/episodes")[0] + "/episodes", task={})
        except urllib.error.HTTPError as error:
            ask({"role": "user", "content": str(error.code)})
    """)
    async with host(scripted(lambda request: say("ok"))) as parts:
        one = await run_episode(parts, TASK, EpisodeKey(0, 0), env=spec)
    assert one.turns[0].observed[0]["content"] == "403"


def test_a_program_beside_the_configuration_is_found_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "agent.sh").write_text("#!/bin/sh\n")
    spec = AgentProgramSpec(("./agent.sh",), cwd=str(tmp_path))
    with pytest.raises(ConfigError, match="make it executable"):
        spec.check()
    (tmp_path / "agent.sh").chmod(0o755)
    assert Path(spec.check()).samefile(tmp_path / "agent.sh")


async def test_a_program_can_be_examined_with_the_model_of_a_server(program: Any) -> None:
    spec = program("""
        said = ask(*task["messages"])
        try:
            ask(*task["messages"], said, {"role": "user", "content": "more"})
        except urllib.error.HTTPError as error:
            reward(float(json.load(error)["error"]["code"] == "context_length_exceeded"))
    """)
    async with odd_server(
        said("fine"), failed(400, "too long", "context_length_exceeded")
    ) as server:
        engine = OpenAIEngine(ChatServerSpec(server.url, "m"))
        async with host(engine, rubric=Rubric([])) as parts:
            trajectory = await run_episode(
                replace(parts, renderer=None), TASK, KEY, env=spec
            )
        await engine.close()
    assert (str(trajectory.status), trajectory.reward) == ("terminated", 1.0)
    assert [turn.text for turn in trajectory.turns] == ["fine"]
    assert trajectory.samples() == ()
