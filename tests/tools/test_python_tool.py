"""The python tool in a real sandbox of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.errors import ToolError
from agentrl.sandbox import Limits, Persist, Sandbox, SandboxSpec
from agentrl.tools import PythonTool, ToolContext, ToolExecutor
from agentrl.types import ToolCall, ToolResult


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    # the tool is the same in every backend; which of them a machine has is the sandbox tests'
    # matter
    async with SandboxSpec(
        backend="unsafe", limits=Limits(output_bytes=4096)
    ).build() as built:
        yield built


async def run(
    sandbox: Sandbox | None, code: str, *, persist: Persist | None = None, **settings: float
) -> ToolResult:
    stderr_lines = int(settings.get("stderr_lines", 3))
    tool = PythonTool(
        persist=persist,
        deadline_s=settings.get("deadline_s", 60.0),
        stderr_lines=stderr_lines,
    )
    (record,) = await ToolExecutor([tool]).run(
        [ToolCall("call_0", "python", {"code": code})], sandbox=sandbox
    )
    assert record.result is not None
    return record.result


async def test_what_is_printed_comes_back(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print(123 * 456)")

    assert (result.content, result.error) == ("56088", None)
    assert set(result.metrics or {}) == {"cpu_s", "wall_s", "queued_s"}


async def test_no_output_is_told(sandbox: Sandbox) -> None:
    assert (
        await run(sandbox, "1 + 1")
    ).content == "(no output; print what you want to see)"


async def test_an_exception_is_told_by_its_last_line(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print('so far')\n1 / 0", stderr_lines=1)

    assert result.content == "so far\nZeroDivisionError: division by zero"
    assert result.error == "exception"


async def test_code_that_is_no_python_is_told(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "print(", stderr_lines=1)).content.startswith("SyntaxError")


async def test_an_exit_code_alone_is_told(sandbox: Sandbox) -> None:
    assert (
        await run(sandbox, "raise SystemExit(3)")
    ).content == "Error: the code ended with exit code 3."


async def test_code_that_hangs_is_ended(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print('in', flush=True)\nwhile True: pass", deadline_s=1.0)

    assert result.error == "timeout"
    assert result.content == "in\nError: the code took longer than 1 s and was ended."


async def test_code_that_floods_is_ended(sandbox: Sandbox) -> None:
    result = await run(sandbox, "while True: print('x' * 100)")

    assert (result.error, result.truncated) == ("output_limit", True)
    assert result.content.endswith(
        "Error: the code printed more than it may and was ended."
    )


async def test_bytes_that_are_no_text_are_replaced(sandbox: Sandbox) -> None:
    assert (
        await run(sandbox, r"import sys; sys.stdout.buffer.write(b'\xff ok')")
    ).content == "\ufffd ok"


async def test_files_last_from_call_to_call(sandbox: Sandbox) -> None:
    await run(sandbox, "open('note', 'w').write('kept')")

    assert (await run(sandbox, "print(open('note').read())")).content == "kept"


async def test_variables_last_where_the_tool_says_so(sandbox: Sandbox) -> None:
    await run(sandbox, "x = 41", persist="interpreter")

    assert (await run(sandbox, "print(x + 1)", persist="interpreter")).content == "42"
    assert "NameError" in (await run(sandbox, "print(x)")).content


async def test_the_model_is_told_that_its_variables_are_lost(sandbox: Sandbox) -> None:
    await run(sandbox, "x = 1", persist="interpreter")
    result = await run(sandbox, "while True: pass", persist="interpreter", deadline_s=1.0)

    assert result.content == (
        "Error: the code took longer than 1 s and was ended.\n"
        "Note: variables of earlier calls are lost; the interpreter was started afresh."
    )


def test_what_cannot_persist_is_our_error() -> None:
    with pytest.raises(
        ToolError, match="persist must be 'files' or 'interpreter', got 'all'"
    ):
        PythonTool(persist="all")  # type: ignore[arg-type]


async def test_without_a_sandbox_it_is_our_error() -> None:
    with pytest.raises(ToolError, match="needs a sandbox; give the environment one"):
        await PythonTool().call({"code": "1"}, ToolContext())
