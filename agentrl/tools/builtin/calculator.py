"""Calculator tool: evaluates arithmetic, without running any of it as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from agentrl.guards.secret_mask import beginning
from agentrl.tools.base import BuiltInTool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import text_spec

Number: TypeAlias = int | float

_MAX_CHARS = 1000
_MAX_BITS = 10_000
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
    **{
        name: getattr(math, name)
        for name in (
            "sqrt",
            "exp",
            "log",
            "log2",
            "log10",
            "sin",
            "cos",
            "tan",
            "floor",
            "ceil",
        )
    },
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}


class CalculatorTool(BuiltInTool):
    """Evaluates an expression of numbers, ``+ - * / // % **``, parentheses and some functions.

    Integers are exact, up to some 3,000 digits. What is wrong with an expression is told in words.

    Args:
        settings: see ``BuiltInSettings``.
    """

    spec = text_spec(
        "calculator",
        "Evaluate arithmetic, such as (2 + 3) * sqrt(16) / 5 ** 2.",
        "expression",
        maxLength=_MAX_CHARS,
    )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Evaluate ``arguments["expression"]``."""
        try:
            return ToolOutput(str(evaluate(arguments["expression"])))
        except (
            ArithmeticError,
            SyntaxError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            reason = error.msg if isinstance(error, SyntaxError) else error
            return ToolOutput(f"Error: {reason}", error="exception")


def evaluate(expression: str) -> Number:
    """The value of an expression.

    Raises:
        SyntaxError, ValueError: it is none, or too large.
        ArithmeticError, TypeError: as Python's operators and functions raise.
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"an expression has at most {_MAX_CHARS} characters")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(inner))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left), _value(right)))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(func=ast.Name(id=name), args=values, keywords=[]) if (
            name in _FUNCTIONS
        ):
            return _bounded(_FUNCTIONS[name](*map(_value, values)))
    known = ", ".join([*_FUNCTIONS, *_CONSTANTS])
    raise ValueError(
        f"{beginning(ast.unparse(node), 80)!r} is no arithmetic; there are numbers, "
        f"+ - * / // % **, parentheses, {known}"
    )


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int):
        # Before it is computed: 9**9**9 would hold the process up and fill its memory.
        if base.bit_length() * abs(exponent) > _MAX_BITS:
            raise ValueError("the power is too large")
    elif base < 0 and exponent != int(exponent):
        raise ValueError("a power of a negative number needs a whole exponent")
    power: Number = base**exponent
    return power


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError("the number is too large")
    return value
