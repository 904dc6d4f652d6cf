"""The built-in tools: shell, files, calculator, submit."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.envs import EpisodeView, exact_answer
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.tools import (
    CalculatorTool,
    FilesTool,
    ShellTool,
    SubmitTool,
    Tool,
    ToolExecutor,
    resolve_tools,
)
from agentrl.tools.builtin.calculator import evaluate
from agentrl.types import Task, ToolCall, ToolResult
from tests.rollouts.bytewise import call, play, say


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with SandboxSpec(backend="unsafe").build() as built:
        yield built


async def run(
    tool: Tool, sandbox: Sandbox | None, *calls: dict[str, Any]
) -> list[ToolResult]:
    made = [ToolCall(f"call_{n}", tool.spec.name, given) for n, given in enumerate(calls)]
    records = await ToolExecutor([tool]).run(made, sandbox=sandbox)
    return [record.result for record in records if record.result is not None]


async def test_the_shell_gives_output_errors_and_exit_code(sandbox: Sandbox) -> None:
    shell = ShellTool()
    done, failed = [
        (await run(shell, sandbox, {"command": command}))[0]
        for command in (
            "echo hi > a.txt; cat a.txt | tr h H",
            "cat a.txt; echo no >&2; exit 3",
        )
    ]
    assert (done.content, done.error) == ("Hi", None)
    assert (failed.content, failed.error) == ("hi\nno\nExit code 3.", "exception")
    (silent,) = await run(shell, sandbox, {"command": "true"})
    assert silent.content == "(no output; print what you want to see)"


async def test_a_command_that_hangs_is_ended(sandbox: Sandbox) -> None:
    (result,) = await run(ShellTool(deadline_s=0.5), sandbox, {"command": "sleep 1000"})
    assert (result.error, result.content) == (
        "timeout",
        "Error: the command took longer than 0.5 s and was ended.",
    )


async def test_files_are_created_viewed_changed_and_listed(sandbox: Sandbox) -> None:
    async def said(**given: Any) -> tuple[str, str | None]:
        (result,) = await run(FilesTool(), sandbox, given)
        return result.content, result.error

    assert await said(command="list") == ("(no files)", None)
    assert await said(command="create", path="src/a.py", text="one\ntwo\nthree\n") == (
        "Created src/a.py.",
        None,
    )
    assert await said(command="view", path="src/a.py", first_line=2) == (
        "     2  two\n     3  three",
        None,
    )
    assert await said(command="replace", path="src/a.py", old="two", new="2") == (
        "Changed src/a.py, from line 2 on.",
        None,
    )
    assert await said(command="list") == ("src/a.py (12 bytes)", None)
    assert (await sandbox.read_file("src/a.py")) == b"one\n2\nthree\n"
    assert await said(command="view", path="src/a.py", first_line=9) == (
        "(no such lines; the file has 3)",
        None,
    )


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"command": "create", "path": "a"}, "invalid_arguments", "create needs text"),
        (
            {"command": "create", "path": "there", "text": ""},
            "exception",
            "is there already",
        ),
        (
            {"command": "create", "path": ".//there", "text": ""},
            "exception",
            "is there already",
        ),
        ({"command": "create", "path": "../up", "text": ""}, "exception", "up"),
        ({"command": "view", "path": "none"}, "exception", "none"),
        ({"command": "view", "path": "bytes"}, "exception", "bytes is no text in UTF-8"),
        (
            {"command": "view", "path": "there", "first_line": 0},
            "invalid_arguments",
            "minimum",
        ),
        (
            {"command": "replace", "path": "there", "old": "a", "new": "b"},
            "exception",
            "exactly once, and does 2 times",
        ),
        (
            {"command": "replace", "path": "there", "old": "", "new": "b"},
            "exception",
            "exactly once, and does 0 times",
        ),
        ({"command": "delete"}, "invalid_arguments", "must be one of"),
    ],
)
async def test_what_a_file_does_not_allow_is_told(
    sandbox: Sandbox, given: dict[str, Any], error: str, why: str
) -> None:
    await sandbox.write_file("there", b"aa")
    await sandbox.write_file("bytes", b"\xff\xfe")
    (result,) = await run(FilesTool(), sandbox, given)
    assert result.error == error
    assert why in result.content


async def test_files_of_any_size_are_cut_where_they_lie(sandbox: Sandbox) -> None:
    await sandbox.run("open('a', 'wb').write(b'\\n' * (60 * 2**20))")
    await sandbox.run("open('b', 'w').write('\u20ac' * 2**16)")
    tool = FilesTool(max_output_chars=10**9)
    views = [
        {"command": "view", "path": "a"},
        {"command": "view", "path": "a", "first_line": 9**6},
    ]
    change = {"command": "replace", "path": "a", "old": "x", "new": "y"}
    tracemalloc.start()
    try:
        first, second, refused = await run(tool, sandbox, *views, change)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # whole files took 240 MiB
    assert most < 64 * 2**20
    assert first.content.endswith("\n[... cut; the file has 62914560 lines ...]")
    assert second.content.startswith("531441  \n")
    assert (
        refused.content == "Error: a is larger than 2097152 bytes; change it by a program"
    )
    (half,) = await run(tool, sandbox, {"command": "view", "path": "b"})
    shown = "\u20ac" * (2**17 // 3)
    assert half.content == f"     1  {shown}\n[... cut; the file has 1 lines ...]"


async def test_changes_of_one_turn_lose_nothing(sandbox: Sandbox) -> None:
    await sandbox.write_file("a", b"".join(b"<%d>" % n for n in range(20)))
    changes = [
        {"command": "replace", "path": "a", "old": f"<{n}>", "new": f"[{n}]"}
        for n in range(20)
    ]
    assert {result.error for result in await run(FilesTool(), sandbox, *changes)} == {None}
    assert await sandbox.read_file("a") == b"".join(b"[%d]" % n for n in range(20))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * -3", -9),
        ("7 // 2 + 7 % 4", 6),
        ("2 ** 100", 2**100),
        ("2 ** -2", 0.25),
        ("sqrt(16) / 5", 0.8),
        ("max(1, 2.5, abs(-3))", 3),
        ("round(pi, 2)", 3.14),
        ("log(e)", 1.0),
        ("1e3", 1000.0),
    ],
)
def test_arithmetic(expression: str, value: float) -> None:
    assert math.isclose(evaluate(expression), value)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1 / 0", "division by zero"),
        ("9 ** 9 ** 9", "the power is too large"),
        ("(2 ** 4999) * (2 ** 4999) * 16", "the number is too large"),
        ("__import__('os')", "is no arithmetic"),
        ("().__class__", "is no arithmetic"),
        ("True + 1", "is no arithmetic"),
        ("1 <", "invalid syntax"),
        ("sqrt()", "exactly one argument"),
        ("(-8) ** 0.5", "whole exponent"),
        ("exp(1e9)", "math range error"),
        ("(" * 400 + "1" + ")" * 400, "too many nested"),
        ("", "invalid syntax"),
    ],
)
async def test_what_is_no_arithmetic_is_told(expression: str, why: str) -> None:
    (result,) = await run(CalculatorTool(), None, {"expression": expression})
    assert result.error == "exception"
    assert why in result.content


async def test_it_takes_no_time_whatever_is_asked() -> None:
    hostile = [
        "*".join(["9**900"] * 140),
        "9" * 990,
        "-" * 900 + "1",
        "(" * 190 + "1" + ")" * 190,
    ]
    start = time.process_time()
    await run(CalculatorTool(), None, *[{"expression": text} for text in hostile])
    assert time.process_time() - start < 10.0  # hours, where it computed what was asked


async def test_a_submitted_answer_ends_the_episode_and_is_what_rewards_read() -> None:
    script = [say("It is 7. " + call("submit", answer="42")), say("never")]
    task = Task("t", ({"role": "user", "content": "6 * 7?"},), answer=42)
    trajectory = await play(script, task=task, tools=[SubmitTool()], reward=exact_answer)
    assert (str(trajectory.status), len(trajectory.turns), trajectory.reward) == (
        "terminated",
        1,
        1.0,
    )
    view = EpisodeView(task, (), trajectory.turns, trajectory.status)
    assert view.submitted == "42"


def test_each_has_a_name() -> None:
    names = ["calculator", "files", "python", "shell", "submit"]
    assert [
        made.spec.name for made in resolve_tools(names) if isinstance(made, Tool)
    ] == names
