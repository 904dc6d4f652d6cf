"""Llama 3 parser: JSON with ``parameters``, bare or behind ``<|python_tag|>``.

The formats are those of Meta's model cards for Llama 3.1: ``{"name": ..., "parameters": {...}}``
for a caller's own tools, and ``<|python_tag|>name.call(key="value")`` for built-in ones. Their
templates have room for one call a turn.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from agentrl.guards.strict_json import JSONFault, read_json
from agentrl.tools.parsers.reading import (
    Call,
    CallFault,
    Marks,
    Reading,
    object_call,
)
from agentrl.types import ParsedMessage, ToolSpec
from agentrl.types.messages import split_reasoning

_TAG = "<|python_tag|>"
_FORM = '{"name": "...", "parameters": {...}}'
_OBJECT = r'\{\s*"(?:name|parameters|type|function)"\s*:'
_OPENING = re.compile(_OBJECT)
_KEYS = frozenset({"name", "parameters", "function", "type"})
_MARKED = tuple(f'{{"{key}"' for key in sorted(_KEYS))
_CALL = re.compile(rf"{re.escape(_TAG)}|{_OBJECT}")
_BRACE = re.compile(r"\s*(?=\{)")
_BUILT_IN = re.compile(r"\s*([A-Za-z_]\w*)\.call(\(.*\))\s*\Z", re.DOTALL)
_MAX_WRITTEN = 8192  # characters of a built-in call's arguments: Python's own parser reads them
_BETWEEN = re.compile(r"[\s;,]*")


class LlamaParser:
    """Reads JSON calls where the text begins with one, after ``<|python_tag|>``, and wherever an
    object opens with ``"name":`` or the like. One call a turn is run; any other is a problem that
    says so.
    """

    marks = Marks(opens=("{", _TAG))

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser."""
        reasoning, rest = split_reasoning(text, before="{")
        reading = Reading.of(text, rest, one_call=True)
        position = 0
        while not reading.full and (start := _next_call(rest, position)) is not None:
            before = rest[position:start]
            reading.content.append("" if position and _BETWEEN.fullmatch(before) else before)
            if rest.startswith(_TAG, start):
                position = _read_tagged(rest, start, reading)
            else:
                position = _read_object(rest, start, start, reading)
        reading.rest(rest[position:], (*_MARKED, _TAG))
        return reading.message(reasoning)


def _next_call(text: str, position: int) -> int | None:
    """Where the next call begins."""
    brace = _BRACE.match(text) if position == 0 else None
    found = brace or _CALL.search(text, position)
    if found is None:
        return None
    return found.end() if brace else found.start()


def _read_tagged(text: str, start: int, reading: Reading) -> int:
    """What follows ``<|python_tag|>``; gives the position behind it."""
    body = start + len(_TAG)
    if brace := _BRACE.match(text, body):
        return _read_object(text, brace.end(), start, reading)
    reading.add(text[start:], lambda: _built_in_call(text[body:]))
    return len(text)


def _built_in_call(written: str) -> Call:
    match = _BUILT_IN.match(written)
    if match is None:
        raise CallFault("malformed_json", f"no call follows {_TAG}; write it as {_TAG}{_FORM}")
    name, brackets = match.groups()
    if len(brackets) > _MAX_WRITTEN:
        raise CallFault(
            "bad_arguments",
            f"arguments in brackets may have {_MAX_WRITTEN} characters, got {len(brackets)}; "
            f"write {_TAG}{_FORM}",
        )
    try:
        call = ast.parse(f"f{brackets}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("only key=value pairs may stand between the brackets")
        arguments = {
            keyword.arg: _literal(keyword.arg, keyword.value)
            for keyword in call.keywords
            if keyword.arg
        }
        if len(arguments) < len(call.keywords):
            raise ValueError("only key=value pairs may stand between the brackets")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise CallFault(
            "bad_arguments", f"the arguments cannot be read: {fault}; write {_TAG}{_FORM}"
        ) from None
    return name, arguments


def _literal(name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # Python's own words name an address in memory
        raise ValueError(f"{name} must be a literal, such as 'x', 1 or [1, 2]") from None


def _read_object(text: str, start: int, raw_start: int, reading: Reading) -> int:
    """The JSON object at ``start``; gives the position behind it."""
    try:
        value, end = read_json(text, start)
    except JSONFault as fault:
        end = _next_opening(text, start, fault.position)
        detail = f"the call is no valid JSON: {fault}; write it as {_FORM}"
        reading.problem("malformed_json", detail, text[raw_start:end])
        return end
    raw = text[raw_start:end]
    if raw_start == start and isinstance(value, dict) and not value.keys() & _KEYS:
        reading.content.append(raw)  # an answer in JSON
        return end
    key = "arguments" if isinstance(value, dict) and "arguments" in value else "parameters"
    reading.add(raw, lambda: object_call(value, key, _FORM, also=("type",)))
    return end


def _next_opening(text: str, start: int, fault: int) -> int:
    """Where the call that follows a faulty one may begin. What was read of that one up to its fault
    is part of it, but for an opening in which a string that was not closed came to its end.
    """
    brace = text.rfind("{", start + 1, fault)
    opening = _OPENING.match(text, brace) if brace >= 0 else None
    if opening is None or opening.end() <= fault:
        opening = _OPENING.search(text, fault)
    return opening.start() if opening else len(text)
