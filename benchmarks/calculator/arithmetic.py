"""Arithmetic: the plain function behind ``calc``, which both sides of benchmarks/step.py call."""

from __future__ import annotations

import ast
import operator

__all__ = ["evaluate"]

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def evaluate(expression: str) -> str:
    """The value of an arithmetic expression of whole numbers, ``+``, ``-``, ``*`` and brackets.

    Raises:
        ValueError: the text is no such expression, or its value has more than 40 digits.
    """
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {expression[:80]!r}") from error
    if abs(value) >= 10**40:
        raise ValueError("the value has more than 40 digits")
    return str(value)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result: int = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return result
    raise ValueError("only whole numbers, +, -, * and brackets are understood")
