"""Mistral parser: calls behind ``[TOOL_CALLS]``, as a list of JSON or one by one.

Tokenizers up to the third version write ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``,
those from the eleventh on ``[TOOL_CALLS]NAME[ARGS]{...}``, once a call (mistral-common's
documentation of instruct tokenizers).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from agentrl.guards.strict_json import JSONFault, read_json
from agentrl.tools.parsers.reading import (
    Marks,
    Reading,
    named_call,
    object_call,
)
from agentrl.types import ParsedMessage, ToolSpec
from agentrl.types.messages import split_reasoning

_MARK = "[TOOL_CALLS]"
_FORM = f'{_MARK}[{{"name": "...", "arguments": {{...}}}}]'
_OBJECT = re.compile(r"\s*(?=\{)")
_LIST = re.compile(r"\s*\[(?=\s*[\{\]])")
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]([^\s\[\]{}]*)\s*)?\[ARGS\]")
_NEXT = re.compile(r"\s*([,\]])")


class MistralParser:
    """Reads what follows each ``[TOOL_CALLS]``; other text is the content."""

    marks = Marks(opens=(_MARK,))

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser."""
        reasoning, rest = split_reasoning(text, before=_MARK)
        reading = Reading.of(text, rest)
        position = 0
        while not reading.full and (start := rest.find(_MARK, position)) >= 0:
            reading.content.append(rest[position:start])
            position = _read_marked(rest, start, reading)
        reading.rest(rest[position:], (_MARK,))
        return reading.message(reasoning)


def _read_marked(text: str, start: int, reading: Reading) -> int:
    """What stands behind the mark at ``start``; gives the position behind it."""
    body = start + len(_MARK)
    if found := _LIST.match(text, body):
        return _read_list(text, start, found.end(), reading)
    if found := _OBJECT.match(text, body):
        return _read_object(text, start, found.end(), reading)[0]
    if found := _NAMED.match(text, body):
        return _read_named(text, start, found, reading)
    end = _next_mark(text, body)
    reading.problem("malformed_json", f"no call follows {_MARK}; write {_FORM}", text[start:end])
    return end


def _read_list(text: str, raw_start: int, position: int, reading: Reading) -> int:
    """The calls of a list; each one's text begins where the one before it ended."""
    if (closing := _NEXT.match(text, position)) and closing[1] == "]":
        detail = f"the list has no call; write {_FORM}, or no {_MARK}"
        reading.problem("malformed_json", detail, text[raw_start : closing.end()])
        return closing.end()
    while not reading.full:
        position, whole = _read_object(text, raw_start, position, reading)
        between = _NEXT.match(text, position) if whole else None
        if between is None:
            if whole:
                detail = f"the list of calls is not closed; end it with ]: {_FORM}"
                end = _next_mark(text, position)
                reading.problem("unclosed", detail, text[position:end])
                return end
            return position
        raw_start = position
        position = between.end()
        if between[1] == "]":
            return position
    return position


def _read_object(text: str, raw_start: int, start: int, reading: Reading) -> tuple[int, bool]:
    """The JSON object at ``start``; gives the position behind it, and whether it could be read."""
    try:
        value, end = read_json(text, start)
    except JSONFault as fault:
        end = _next_mark(text, start)
        detail = f"the call is no valid JSON: {fault}; write {_FORM}"
        reading.problem("malformed_json", detail, text[raw_start:end])
        return end, False
    reading.add(
        text[raw_start:end], partial(object_call, value, "arguments", _FORM, also=("id", "type"))
    )
    return end, True


def _read_named(text: str, raw_start: int, found: re.Match[str], reading: Reading) -> int:
    """A name and its arguments."""
    form = f"{_MARK}NAME[ARGS]{{...}}"
    try:
        value, end = read_json(text, found.end())
    except JSONFault as fault:
        end = _next_mark(text, found.end())
        detail = f"the arguments are no valid JSON: {fault}; write {form}"
        reading.problem("malformed_json", detail, text[raw_start:end])
        return end
    reading.add(text[raw_start:end], partial(named_call, found[1], value, "the arguments' JSON"))
    return end


def _next_mark(text: str, position: int) -> int:
    found = text.find(_MARK, position)
    return found if found >= 0 else len(text)
