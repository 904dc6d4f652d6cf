"""The code example's tool without a sandbox: ``print`` of arithmetic, which is all that the policy
of this task is shown to write.

A sandbox takes most of a step of that example and has no part in what an algorithm learns.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from agentrl.tools import CalculatorTool, PythonTool, Tool, ToolContext, ToolOutput

__all__ = ["PrintTool", "python"]


class PrintTool(Tool):
    """Takes what ``PythonTool`` takes, and evaluates ``print(ARITHMETIC)`` alone."""

    def __init__(self) -> None:
        self.spec = PythonTool().spec
        self._calculator = CalculatorTool()

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Evaluate the arithmetic that ``arguments["code"]`` prints."""
        expression = printed(arguments["code"])
        if expression is None:
            return ToolOutput("Error: only print(ARITHMETIC) runs here", error="exception")
        return await self._calculator.call({"expression": expression}, context)


def printed(code: str) -> str | None:
    """What ``print(...)`` is given; None for any other code."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match tree.body:
        case [
            ast.Expr(ast.Call(func=ast.Name(id="print"), args=[argument], keywords=[]))
        ] if not isinstance(argument, ast.Starred):
            return ast.unparse(argument)
    return None


python = PrintTool()
