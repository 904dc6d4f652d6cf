"""Static types: a tool is still called with its function's own types, as mypy sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

CODE = """
from agentrl.tools import FunctionTool, ToolFactory, tool

@tool
def add(a: int, b: int = 3) -> int:
    '''Add.'''
    return a + b

@tool(deadline_s=3.0)
async def ask(what: str) -> bytes:
    '''Ask.'''
    return what.encode()

class Bank:
    @tool
    def deposit(self, euro: int) -> float:
        '''Deposit.'''
        return euro / 1

reveal_type(add)
reveal_type(add(1))
asked = reveal_type(ask("x"))
reveal_type(Bank().deposit)
reveal_type(Bank().deposit(2))
add("1")
add(1, c=2)
Bank().deposit("x")
"""


@pytest.mark.slow
def test_mypy_knows_what_a_tool_takes_and_gives(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(CODE)
    root = Path(__file__).parents[2]
    # as ``make check`` asks, so that what it found out of the package's files holds here
    out, err, _ = api.run([str(file), f"--config-file={root}/pyproject.toml"])
    told = [
        re.sub(r"(agentrl|user|builtins|typing)\.(\w+\.)*", "", line)
        for line in out.splitlines()
    ]
    revealed = [
        line.partition("type is ")[2].strip('"') for line in told if "type is" in line
    ]
    assert revealed == [
        "FunctionTool[[a: int, b: int =], int]",
        "int",
        "Coroutine[Any, Any, bytes]",
        "FunctionTool[[euro: int], float]",
        "float",
    ], (out, err)
    errors = [line for line in told if "error:" in line]
    assert len(errors) == 3, errors
    assert 'has incompatible type "str"; expected "int"' in errors[0]
    assert 'Unexpected keyword argument "c"' in errors[1]
    assert 'has incompatible type "str"; expected "int"' in errors[2]
