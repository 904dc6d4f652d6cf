"""Mistral parser: calls behind ``[TOOL_CALLS]``, as a list of JSON or one by one.

Tokenizers up to the third version write ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``,
those from the eleventh on ``[TOOL_CALLS]NAME[ARGS]{...}``, once a call (mistral-common's
documentation of instruct tokenizers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agentrl.guards.parsing import JSONFault, read_json
from agentrl.tools.parsers.reading import (
    Call,
    CallReading,
    FormatParser,
    Marks,
    named_call,
    object_call,
)
from agentrl.types import ToolSpec

_MARK = "[TOOL_CALLS]"
_FORM = f'{_MARK}[{{"name": "...", "arguments": {{...}}}}]'
_OBJECT = re.compile(r"\s*(?=\{)")
_LIST = re.compile(r"\s*\[(?=\s*[\{\]])")
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]([^\s\[\]{}]*)\s*)?\[ARGS\]")
_NEXT = re.compile(r"\s*([,\]])")


class MistralParser(FormatParser):
    """Reads what follows each ``[TOOL_CALLS]``; other text is the content."""

    marks = Marks(opens=(_MARK,))
    opening = re.compile(re.escape(_MARK))
    before = _MARK

    def read(
        self, text: str, start: int, reading: CallReading, tools: Sequence[ToolSpec]
    ) -> int:
        """What stands behind a mark."""
        body = start + len(_MARK)
        if found := _LIST.match(text, body):
            return _read_list(text, start, found.end(), reading)
        if found := _OBJECT.match(text, body):
            return _read_object(text, start, found.end(), reading)[0]
        if found := _NAMED.match(text, body):
            call = partial(named_call, found[1], what="the arguments' JSON")
            form = f"{_MARK}NAME[ARGS]{{...}}"
            return _read_json(
                text, start, found.end(), reading, call, "the arguments are", form
            )[0]
        end = _next_mark(text, body)
        detail = f"no call follows {_MARK}; write {_FORM}"
        reading.problem("malformed_json", detail, text[start:end])
        return end


def _read_list(text: str, raw_start: int, position: int, reading: CallReading) -> int:
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


def _read_object(
    text: str, raw_start: int, start: int, reading: CallReading
) -> tuple[int, bool]:
    """The JSON object at ``start``; gives the position behind it, and whether it could be read."""
    call = partial(object_call, key="arguments", form=_FORM, also=("id", "type"))
    return _read_json(text, raw_start, start, reading, call, "the call is", _FORM)


def _read_json(
    text: str,
    raw_start: int,
    start: int,
    reading: CallReading,
    call: Callable[[Any], Call],
    what: str,
    form: str,
) -> tuple[int, bool]:
    try:
        value, end = read_json(text, start)
    except JSONFault as fault:
        end = _next_mark(text, start)
        detail = f"{what} no valid JSON: {fault}; write {form}"
        reading.problem("malformed_json", detail, text[raw_start:end])
        return end, False
    reading.add(text[raw_start:end], partial(call, value))
    return end, True


def _next_mark(text: str, position: int) -> int:
    found = text.find(_MARK, position)
    return found if found >= 0 else len(text)
