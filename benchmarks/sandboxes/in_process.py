"""In process: the code example's tool without a sandbox, to measure the sandbox's cost."""

from __future__ import annotations

import contextlib
import io

from agentrl.tools import tool

__all__ = ["python"]


@tool(name="python")
def python(code: str) -> str:
    """Run Python code and get what it prints.

    Args:
        code: Python source code.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__builtins__": {"print": print}})
    return printed.getvalue().rstrip("\n") or "(no output; print what you want to see)"
