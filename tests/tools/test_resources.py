"""Resources: opened once a process, passed by parameter name, closed behind the tools."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.envs import ToolEnv
from agentrl.errors import AgentRLError, ConfigError, ToolError
from agentrl.run.build import LiveObjects, env_spec
from agentrl.tools import (
    HermesParser,
    Resource,
    ResourceReference,
    ToolFactory,
    close_shared_tools,
    tool,
)
from agentrl.types import Action, Task
from tests.kit.waiting import DEADLINE_S

TASK = Task("t", ({"role": "user", "content": "hi"},))
FILE = """
import threading
from agentrl.tools import Resource, tool

LOG = []

class Database:
    def __init__(self, name="plain"):
        LOG.append(f"open {name}")
        self.rows = {"a": name}

    def close(self):
        LOG.append("close")

def open_db(name="plain"):
    return Database(name)

def broken():
    raise OSError("no disk")

async def later():
    return 1

@tool
def look_up(key: str, db: Resource[Database]) -> str:
    '''Look up.

    Args:
        key: of a row.
    '''
    return db.rows[key]

class Desk:
    def __init__(self, db, task):
        self.db = db

    @tool
    def read(self, key: str) -> str:
        '''Read.'''
        return self.db.rows[key]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "task.py").write_text(textwrap.dedent(FILE))
    yield tmp_path
    close_shared_tools()


async def said(env: ToolEnv, name: str) -> Any:
    text = f'<tool_call>{{"name": "{name}", "arguments": {{"key": "a"}}}}</tool_call>'
    parsed = HermesParser().parse(text)
    await env.reset(seed=0)
    result = await env.step(
        Action(text, parsed.message, parsed.tool_calls, parsed.problems)
    )
    return result.observation.messages[0]["content"]


def log(folder: Path) -> list[str]:
    from agentrl.types import load_object

    found: list[str] = load_object("task.py:LOG", folder)
    return found


def env_with(folder: Path, tools: list[Any], **resources: Any) -> ToolEnv:
    return ToolEnv(TASK, tools=tools, base_dir=folder, resources=resources)


async def test_it_is_opened_once_given_to_functions_and_toolsets_and_closed_at_the_end(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "agentrl")
    reference = ResourceReference(function="task.py:open_db", args={"name": "mine"})
    envs = [
        await asyncio.to_thread(
            env_with, folder, ["task.py:look_up", "task.py:Desk"], db=reference
        )
        for _ in range(3)
    ]
    assert [await said(env, "look_up") for env in envs] == ["mine"] * 3
    assert await said(envs[0], "read") == "mine"
    assert (await envs[0].reset(seed=0)).tools[0].parameters["required"] == ["key"]  # type: ignore[index]
    for env in envs:
        await env.close()
    assert log(folder) == ["open mine"]
    assert [vars(one)["event"] for one in caplog.records] == ["resource_opened"]
    close_shared_tools()
    close_shared_tools()
    assert log(folder) == ["open mine", "close"]


async def test_an_object_is_taken_as_it_is_and_stays_open(folder: Path) -> None:
    from agentrl.types import load_object

    db = load_object("task.py:open_db", folder)("own")
    assert await said(env_with(folder, ["task.py:look_up"], db=db), "look_up") == "own"
    close_shared_tools()
    assert log(folder) == ["open own"]


def test_one_that_is_missing_is_named_with_its_remedy(folder: Path) -> None:
    with pytest.raises(
        ToolError,
        match=r"tool 'look_up' takes the resource 'db', and the resources are: none; name what "
        r"opens it in ToolEnv\.resources, as \{db: file\.py:open_db\}",
    ):
        env_with(folder, ["task.py:look_up"])
    with pytest.raises(ToolError, match="missing a required argument: 'db'"):
        env_with(folder, ["task.py:Desk"])


@pytest.mark.parametrize("name", ["task", "context", "self", "state", "no-name", "class"])
def test_reserved_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"ToolEnv\.resources: {name} must be the name of a par"
    ):
        env_with(folder, [], **{name: 1})


def test_a_name_that_is_given_twice_is_refused(folder: Path) -> None:
    @tool
    def ask(db: str) -> str:
        """Ask."""
        return db

    def make(db: Any) -> Any:
        return ask

    with pytest.raises(
        ToolError, match="argument 'db' is the model's, and the name of a resource"
    ):
        env_with(folder, [ask], db=1)
    with pytest.raises(ToolError, match=r"'db' is given by args and by ToolEnv\.resources"):
        env_with(folder, [ToolFactory(make, {"db": 2})], db=1)


def test_one_that_cannot_be_opened_is_ours_and_tried_again(folder: Path) -> None:
    reference = ResourceReference(function="task.py:broken")
    with pytest.raises(
        ToolError, match=r"db: task\.py:broken raised OSError: no disk"
    ) as caught:
        env_with(folder, [], db=reference)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("function", "args", "why"),
    [
        ("task.py:later", {}, "must be synchronous"),
        ("task.py:none", {}, "cannot be loaded"),
        ("task.py:open_db", {"nam": 1}, "must take"),
    ],
)
def test_what_the_configuration_names_wrongly_is_told_before_a_run(
    folder: Path, function: str, args: dict[str, Any], why: str
) -> None:
    config = folder / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: {train: t.jsonl}\n"
        "env: {tools: [task.py:look_up], resources: "
        f"{{db: {{function: {function}, args: {args}}}}}}}"
    )
    (stage,) = load_config(config).resolved_stages()
    with pytest.raises(AgentRLError, match=rf"(env|ToolEnv)\.resources: db.*{why}"):
        env_spec(stage, LiveObjects())


async def test_a_text_is_short_for_its_function(folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: {train: t.jsonl}\n"
        "env: {tools: [task.py:look_up], resources: {db: task.py:open_db}}"
    )
    (stage,) = load_config(config).resolved_stages()
    env = await asyncio.to_thread(env_spec(stage, LiveObjects()).build, TASK)
    assert isinstance(env, ToolEnv)
    assert await said(env, "look_up") == "plain"


def test_it_is_closed_behind_the_tools_when_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        textwrap.dedent("""
            from agentrl.envs import ToolEnv
            from agentrl.tools import Resource, ResourceReference, tool
            from agentrl.types import Task

            class Db:
                async def close(self):
                    print("db closed")

            class Ping:
                def __call__(self, db: Resource[Db]) -> str:
                    '''Ping.'''
                    return ""

                def close(self):
                    print("tool closed")

            if __name__ == "__main__":
                task = Task("t", ({"role": "user", "content": "hi"},))
                ping = tool(Ping())
                db = ResourceReference(function="own.py:Db")
                ToolEnv(task, tools=[ping], resources={"db": db})
        """)
    )
    done = subprocess.run(
        [sys.executable, "own.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.stdout.split("\n"), done.stderr) == (["tool closed", "db closed", ""], "")


def test_the_marked_type_is_the_functions_own() -> None:
    @tool
    def ask(db: Resource[int]) -> int:
        """Ask."""
        return db

    assert ask(3) == 3
