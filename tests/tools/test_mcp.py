"""MCP servers: their tools as ours, and what a server's misbehaviour becomes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError, ToolError, ToolFaultError
from agentrl.run.build import LiveObjects, env_spec
from agentrl.tools import (
    HermesParser,
    McpServerSpec,
    Tool,
    ToolOutput,
    close_shared_tools,
    tool,
)
from agentrl.types import Action, Message, Task
from tests.kit.waiting import DEADLINE_S, is_alive, until_async
from tests.rollouts.bytewise import call

SERVER = str(Path(__file__).with_name("mcp_server.py"))
TASK = Task("t", ({"role": "user", "content": "hi"},))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log"
    path.touch()
    yield path
    close_shared_tools()


def spec(log: Path, mode: str = "", **settings: Any) -> McpServerSpec:
    return McpServerSpec(command=(sys.executable, SERVER, str(log), mode), **settings)


async def opened(
    log: Path,
    mode: str = "",
    *,
    task: Task = TASK,
    tools: Sequence[str] | None = None,
    own: Sequence[Tool] = (),
    **settings: Any,
) -> ToolEnv:
    servers = {"fs": spec(log, mode, tools=tools, **settings)}
    env = await asyncio.to_thread(lambda: ToolEnv(task, tools=own, mcp=servers))
    await env.reset(seed=0)
    return env


async def said(env: ToolEnv, name: str, text: str = "hi") -> Message:
    action = HermesParser().parse(call(name, text=text))
    result = await env.step(Action("", action.message, action.tool_calls, action.problems))
    (message,) = result.observation.messages
    return message


def lines(log: Path) -> list[str]:
    return [line.partition(" ")[2] for line in log.read_text().splitlines()]


def pids(log: Path) -> list[int]:
    return [
        int(line.split()[0]) for line in log.read_text().splitlines() if "start" in line
    ]


async def test_episodes_share_a_server_of_the_process_which_ends_with_it(log: Path) -> None:
    one, other = await opened(log), await opened(log)
    assert not one.is_plain  # made in a thread: its server may have to be started again
    assert (await said(one, "echo", "a"))["content"] == "a"
    assert (await said(other, "echo", "b"))["content"] == "b"
    assert (await said(other, "fail", "no"))["content"] == "Error: no"
    await one.close()
    assert lines(log) == ["start", "echo a", "echo b", "fail no"]
    assert is_alive(pids(log)[0])
    close_shared_tools()
    assert not is_alive(pids(log)[0])


async def test_a_server_of_the_episode_ends_with_it(log: Path) -> None:
    one, other = await opened(log, scope="episode"), await opened(log, scope="episode")
    await said(one, "echo")
    first, second = pids(log)
    await one.close()
    assert (is_alive(first), is_alive(second)) == (False, True)
    await other.close()
    assert not is_alive(second)


async def test_listed_tools_alone_under_a_prefix(log: Path) -> None:
    env = await opened(log, tools=("echo", "fail"), prefix="fs_")
    assert [one.name for one in (await env.reset(seed=0)).tools or ()] == [
        "fs_echo",
        "fs_fail",
    ]
    assert (await said(env, "fs_echo", "x"))["content"] == "x"
    assert "there is no tool 'fs_die'" in (await said(env, "fs_die"))["content"]
    with pytest.raises(
        ToolError, match="the server 'fs' has no tool 'nothing'; it has ask, bad"
    ):
        await opened(log, tools=("nothing",))


async def test_the_program_gets_few_variables(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.setenv("PASSED", "y")
    env = await opened(log, pass_env=("PASSED",), env={"OWN": "z"})
    names = set(str((await said(env, "env"))["content"]).split())
    assert {"PASSED", "OWN", "PATH"} <= names
    assert "SECRET_KEY" not in names


@pytest.mark.parametrize(
    "asked", ["sampling/createMessage", "elicitation/create", "roots/list"]
)
async def test_what_a_server_asks_of_its_client_is_refused(log: Path, asked: str) -> None:
    env = await opened(log)
    assert "not supported" in str((await said(env, "ask", asked))["content"]).lower()


@pytest.mark.wide
@pytest.mark.parametrize("name", ["die", "hang", "flood", "spam", "bad"])
async def test_a_server_that_misbehaves_is_ours_sent_once_and_started_again(
    log: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "agentrl")
    env = await opened(log, deadline_s=2.0 if name == "hang" else 30.0)
    start = time.monotonic()
    with pytest.raises(ToolFaultError, match="the MCP server 'fs' failed") as caught:
        await said(env, name)
    assert time.monotonic() - start < 30
    assert (caught.value.by_call, caught.value.alone, caught.value.retryable) == (
        True,
        True,
        True,
    )
    assert (await said(env, "echo", "again"))["content"] == "again"
    assert [line for line in lines(log) if line != "start"] == [f"{name} hi", "echo again"]
    first, *_ = pids(log)
    assert name == "bad" or not is_alive(first)
    events = [vars(one)["event"] for one in caplog.records]
    assert events.count("mcp_server_started") == 2
    assert name == "bad" or "mcp_server_failed" in events


async def test_what_a_dying_server_said_is_told_by_its_end(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = await opened(log)
    with pytest.raises(ToolFaultError) as caught:
        await said(env, "die")
    await said(env, "echo")  # by now the end of the first one is told
    told = [str(caught.value)]
    told += [
        r.getMessage() for r in caplog.records if vars(r)["event"] == "mcp_server_failed"
    ]
    assert len(told) == 2
    for text in told:
        assert "its standard error ends with: xxx" in text
        assert text.split("(")[0].rstrip().endswith("OSError: no such index")
        assert len(text) < 3000


async def test_an_idempotent_call_is_sent_again(log: Path) -> None:
    env = await opened(log, idempotent=True)
    with pytest.raises(ToolFaultError):
        await said(env, "die")
    assert lines(log) == ["start", "die hi"] * 4


async def test_one_that_died_between_two_calls_is_started_again_before_anything_is_sent(
    log: Path,
) -> None:
    env = await opened(log)
    await said(env, "echo", "a")
    os.kill(pids(log)[0], 9)
    await until_async(lambda: not is_alive(pids(log)[0]))
    await asyncio.sleep(0.1)  # its end is heard by the connection's own loop
    assert (await said(env, "echo", "b"))["content"] == "b"
    assert lines(log) == ["start", "echo a", "start", "echo b"]


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("exit", "standard error ends with: ModuleNotFoundError: .* 'server_of_mine'"),
        ("mute", "failed: TimeoutError"),
    ],
)
async def test_one_that_does_not_start_is_ours(log: Path, mode: str, why: str) -> None:
    with pytest.raises(ToolError, match=why) as caught:
        await opened(log, mode, start_timeout_s=1.5)
    assert caught.value.retryable


async def test_one_that_is_no_program_is_ours(log: Path) -> None:
    servers = {"fs": McpServerSpec(command=("/no/such/program",))}
    with pytest.raises(ToolError, match="No such file"):
        await asyncio.to_thread(lambda: ToolEnv(TASK, mcp=servers))


async def test_a_schema_that_is_none_is_named(log: Path) -> None:
    with pytest.raises(ToolError, match="the server 'fs': tool 'echo': the schema of its"):
        await opened(log, "badschema")


async def test_pages_without_an_end_are_given_up(log: Path) -> None:
    with pytest.raises(
        ToolError, match="the server 'fs' lists its tools on more than 100 pages"
    ):
        await opened(log, "pages")
    env = await opened(log, "more_pages")
    with pytest.raises(ToolError, match="more than 100 pages"):
        await said(env, "swap")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["echo", ""], "lists a tool '', which a model would call by the name ''"),
        (["echo", "??"], "a tool '[?]{2}', which a model would call by the name '__'"),
        (["a b", "a_b"], "a tool 'a_b', .* by the name 'a_b' as that of 'a b'"),
    ],
)
async def test_a_name_that_no_model_can_call_is_refused(
    log: Path, names: list[str], why: str
) -> None:
    with pytest.raises(ToolError, match=why):
        await opened(log, f"names:{json.dumps(names)}")


async def test_a_changed_list_is_told_in_the_answer(log: Path) -> None:
    env = await opened(log)
    answer = str((await said(env, "swap", "done"))["content"])
    assert answer.startswith("done\n\nThe tools on offer are now: echo, new_one.\n{")
    assert (await said(env, "new_one", "x"))["content"] == "x"
    assert "there is no tool 'die'" in (await said(env, "die"))["content"]
    answer = str((await said(env, "echo", "swap"))["content"])
    assert answer.startswith("swap\n\nThe tools on offer are now: echo, die, hang, ")


async def test_a_task_that_names_its_tools_is_offered_no_others(log: Path) -> None:
    env = await opened(log, task=replace(TASK, info={"tools": ["echo", "swap"]}))
    assert [one.name for one in (await env.reset(seed=0)).tools or ()] == ["echo", "swap"]
    assert (await said(env, "echo", "a"))["content"] == "a"
    assert "there is no tool 'fail'" in (await said(env, "fail"))["content"]
    assert env.state_dict() is not None
    answer = str((await said(env, "swap", "done"))["content"])
    assert answer.startswith("done\n\nThe tools on offer are now: echo.")
    assert "there is no tool 'new_one'" in (await said(env, "new_one"))["content"]


@tool
def narrow(text: str) -> ToolOutput:
    """Leave two."""
    return ToolOutput(text, tools=["echo", "swap"])


async def test_what_a_tool_took_off_offer_stays_off_and_a_new_one_comes(log: Path) -> None:
    env = await opened(log, own=[narrow])
    await said(env, "narrow")
    assert (await said(env, "echo", "a"))["content"] == "a"
    assert "there is no tool 'fail'" in (await said(env, "fail"))["content"]
    answer = str((await said(env, "swap", "done"))["content"])
    assert answer.startswith("done\n\nThe tools on offer are now: echo, new_one.")


async def test_a_servers_change_leaves_those_of_another_server(log: Path) -> None:
    servers = {"fs": spec(log), "other": spec(log, tools=("echo", "fail"), prefix="o_")}
    task = replace(TASK, info={"tools": ["echo", "swap", "o_echo"]})
    env = await asyncio.to_thread(lambda: ToolEnv(task, mcp=servers))
    await env.reset(seed=0)
    answer = str((await said(env, "swap", "done"))["content"])
    assert answer.startswith("done\n\nThe tools on offer are now: o_echo, echo.")


HTTP = """
import asyncio, socket, sys, uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("demo")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

@server.tool()
def large(text: str) -> str:
    return "x" * 5_000_000

@server.tool()
async def spam(ctx: Context) -> str:
    while True:
        await ctx.session.send_log_message(level="info", data="spam")
        # Its loop serves others too, also where nobody takes what it sends.
        await asyncio.sleep(0)

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
app = server.streamable_http_app(json_response=sys.argv[1] == "json")
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listening])
"""


@pytest.mark.parametrize("shape", ["json", "events"])
async def test_one_that_speaks_http(log: Path, shape: str) -> None:
    script = log.with_name("demo.py")
    script.write_text(HTTP)
    process = subprocess.Popen(
        [sys.executable, str(script), shape], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        servers = {"demo": McpServerSpec(url=url)}
        env = await asyncio.to_thread(lambda: ToolEnv(TASK, mcp=servers))
        await env.reset(seed=0)
        action = HermesParser().parse(call("add", a=2, b=3))
        act = Action("", action.message, action.tool_calls, action.problems)
        assert (await env.step(act)).observation.messages[0]["content"] == "5"
        with pytest.raises(
            ToolFaultError, match=r"server 'demo' failed: .*(4,194,304|4194304)"
        ):
            await said(env, "large")
        if shape == "events":  # an answer in JSON carries nothing else
            with pytest.raises(ToolFaultError, match="the MCP server 'demo' failed"):
                await said(env, "spam")
            assert (await env.step(act)).observation.messages[0]["content"] == "5"
        process.kill()
        process.wait(DEADLINE_S)
        with pytest.raises(ToolFaultError, match="the MCP server 'demo' failed"):
            await env.step(act)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


async def test_the_configuration_names_servers(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: {train: t.jsonl}\n"
        f"env:\n  mcp:\n    fs: {{command: [{sys.executable}, {SERVER}, {log}], tools: [echo]}}\n"
    )
    (stage,) = load_config(config).resolved_stages()
    env = await asyncio.to_thread(env_spec(stage, LiveObjects()).build, TASK)
    assert isinstance(env, ToolEnv)
    await env.reset(seed=0)
    assert (await said(env, "echo", "x"))["content"] == "x"
    config.write_text(
        "model: {path: m}\ndata: {train: t.jsonl}\nenv: {mcp: {fs: {tools: [a]}}}\n"
    )
    with pytest.raises(ConfigError, match=r"env\.mcp.*needs command or url"):
        load_config(config).resolved_stages()


async def test_a_program_starts_in_the_configurations_folder_with_this_python(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text(
        "import sys, runpy\n"
        f"open({str(log)!r}, 'a').write(f'0 by {{sys.executable}}\\n')\n"
        f"sys.argv[0] = {SERVER!r}\n"
        f"runpy.run_path({SERVER!r}, run_name='__main__')\n"
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: {train: t.jsonl}\n"
        f"env: {{mcp: {{fs: {{command: [python, server.py, {log}]}}}}}}\n"
    )
    (stage,) = load_config(config).resolved_stages()
    env = await asyncio.to_thread(env_spec(stage, LiveObjects()).build, TASK)
    await env.reset(seed=0)
    assert (await said(env, "echo", "x"))["content"] == "x"
    assert f"by {sys.executable}" in lines(log)


def test_a_server_has_a_command_or_an_address() -> None:
    for settings in ({}, {"command": ("a",), "url": "http://b"}):
        with pytest.raises(
            ConfigError, match=r"McpServerSpec\.command or url must be given"
        ):
            McpServerSpec(**settings)  # type: ignore[arg-type]
