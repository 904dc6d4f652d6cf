"""Llama 3 parser: JSON with ``parameters``, bare or behind ``<|python_tag|>``.

The formats are those of Meta's model cards for Llama 3.1: ``{"name": ..., "parameters": {...}}``
for a caller's own tools, and ``<|python_tag|>name.call(key="value")`` for built-in ones. Their
templates have room for one call a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.guards.parsing import JSONFault, read_json
from agentrl.tools.parsers.pythonic import python_call
from agentrl.tools.parsers.reading import (
    Call,
    CallFault,
    CallReading,
    FormatParser,
    Marks,
    object_call,
)
from agentrl.types import ToolSpec

_TAG = "<|python_tag|>"
_FORM = '{"name": "...", "parameters": {...}}'
_OBJECT = r'\{\s*"(?:name|parameters|type|function)"\s*:'
_OPENING = re.compile(_OBJECT)
_KEYS = frozenset({"name", "parameters", "function", "type"})
_MARKED = tuple(f'{{"{key}"' for key in sorted(_KEYS))
_CALL = re.compile(rf"{re.escape(_TAG)}|{_OBJECT}")
_BRACE = re.compile(r"\s*(?=\{)")
_BUILT_IN = re.compile(r"\s*([A-Za-z_]\w*)\.call(\(.*\))\s*\Z", re.DOTALL)
# Characters of a built-in call's arguments: Python's own parser reads them.
_MAX_WRITTEN = 8192
_BETWEEN = re.compile(r"[\s;,]*")


class LlamaParser(FormatParser):
    """Reads JSON calls where the text begins with one, after ``<|python_tag|>``, and wherever an
    object opens with ``"name":`` or the like. One call a turn is run; any other is a problem that
    says so.
    """

    marks = Marks(opens=("{", _TAG))
    before = "{"
    counted = (*_MARKED, _TAG)
    one_call = True

    def find(self, text: str, position: int) -> int | None:
        """See ``FormatParser.find``."""
        if position == 0 and (brace := _BRACE.match(text)):
            return brace.end()
        found = _CALL.search(text, position)
        return found.start() if found else None

    def said(self, text: str, is_first: bool) -> str:
        """See ``FormatParser.said``."""
        return text if is_first or not _BETWEEN.fullmatch(text) else ""

    def read(
        self, text: str, start: int, reading: CallReading, tools: Sequence[ToolSpec]
    ) -> int:
        """An object, or what follows ``<|python_tag|>``."""
        if text.startswith(_TAG, start):
            return _read_tagged(text, start, reading)
        return _read_object(text, start, start, reading)


def _read_tagged(text: str, start: int, reading: CallReading) -> int:
    """What follows ``<|python_tag|>``; gives the position behind it."""
    body = start + len(_TAG)
    if brace := _BRACE.match(text, body):
        return _read_object(text, brace.end(), start, reading)
    reading.add(text[start:], lambda: _built_in_call(text[body:]))
    return len(text)


def _built_in_call(written: str) -> Call:
    match = _BUILT_IN.match(written)
    if match is None:
        raise CallFault(
            "malformed_json", f"no call follows {_TAG}; write it as {_TAG}{_FORM}"
        )
    name, brackets = match.groups()
    if len(brackets) > _MAX_WRITTEN:
        raise CallFault(
            "bad_arguments",
            f"arguments in brackets may have {_MAX_WRITTEN} characters, got {len(brackets)}; "
            f"write {_TAG}{_FORM}",
        )
    try:
        return name, python_call(f"f{brackets}", {})[1]
    except ValueError as fault:
        raise CallFault(
            "bad_arguments", f"the arguments cannot be read: {fault}; write {_TAG}{_FORM}"
        ) from None


def _read_object(text: str, start: int, raw_start: int, reading: CallReading) -> int:
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
        # An answer in JSON.
        reading.content.append(raw)
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
