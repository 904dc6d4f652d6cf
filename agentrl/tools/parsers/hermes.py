"""Calls as Hermes and Qwen write them: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

The format is that of NousResearch's Hermes function calling, which Qwen2.5's and Qwen3's chat templates ask for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from agentrl.tools.parsers.reasoning import split_reasoning
from agentrl.tools.parsers.strict_json import JSONFault, read_json
from agentrl.types import CallProblem, Message, ParsedMessage, ProblemKind, ToolCall

__all__ = ["HermesParser"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?tool_call>")
_FORM = '{"name": "...", "arguments": {...}}'


@dataclass
class _Reading:
    """What has been found so far, and the numbering that calls and problems share."""

    calls: list[ToolCall] = field(default_factory=list)
    problems: list[CallProblem] = field(default_factory=list)
    content: list[str] = field(default_factory=list)

    @property
    def next_id(self) -> str:
        return f"call_{len(self.calls) + len(self.problems)}"

    def problem(self, kind: ProblemKind, detail: str, raw: str) -> None:
        self.problems.append(CallProblem(self.next_id, kind, detail, raw))
        self.content.append(raw)  # what is no call stays part of what was said


class HermesParser:
    """Reads ``<tool_call>`` blocks. JSON is read strictly: what another server would refuse is a problem here too."""

    def parse(self, text: str) -> ParsedMessage:
        """The assistant's message; see ToolCallParser.

        A block ends at its closing tag; one inside a JSON string does not count. A well-formed call without a closing
        tag is a problem as well (``unclosed``), since it may have been cut. Text outside blocks is the content,
        a leading ``<think>`` block is ``reasoning_content``, and a call within it is a thought.
        """
        reasoning, rest = split_reasoning(text, before=_OPEN)
        reading = _Reading()
        position = 0
        while tag := _TAG.search(rest, position):
            reading.content.append(rest[position : tag.start()])
            if tag.group() == _CLOSE:
                detail = f"{_CLOSE} closes nothing; begin a call with {_OPEN}"
                reading.problem("unclosed", detail, _CLOSE)
                position = tag.end()
            else:
                position = _read_block(rest, tag.end(), reading)
        reading.content.append(rest[position:])
        message: Message = {"role": "assistant", "content": "".join(reading.content).strip()}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if reading.calls:
            message["tool_calls"] = [call.openai() for call in reading.calls]
        return ParsedMessage(message, tuple(reading.calls), tuple(reading.problems))


def _read_block(text: str, start: int, reading: _Reading) -> int:
    """Read the block whose body starts at ``start``; gives the position where the search goes on."""
    try:
        value, body_end = read_json(text, start)
        fault = None
    except JSONFault as found:
        value, body_end, fault = None, start, found
    end = _TAG.search(text, body_end)
    closed = end is not None and end.group() == _CLOSE
    block_end = end.end() if end and closed else end.start() if end else len(text)
    raw = text[start - len(_OPEN) : block_end]
    if not closed:
        detail = f"the call is not closed; end it with {_CLOSE}" + (f" ({fault})" if fault else "")
        reading.problem("unclosed", detail, raw)
    elif fault:
        reading.problem("malformed_json", f"the call is no valid JSON: {fault}; write it as {_FORM}", raw)
    elif end and (extra := text[body_end : end.start()].strip()):
        detail = f"one block holds one call, but {extra[:40]!r} follows its JSON; put it into another one"
        reading.problem("malformed_json", detail, raw)
    else:
        _read_call(value, raw, reading)
    return block_end


def _read_call(value: Any, raw: str, reading: _Reading) -> None:
    if not isinstance(value, dict):
        reading.problem("malformed_json", f"a call is a JSON object, not {_kind(value)}; write it as {_FORM}", raw)
        return
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        found = f"got {_kind(name)}" if "name" in value else f"the keys are {sorted(value)}"
        reading.problem("missing_name", f'the call needs "name", the tool\'s name as a string; {found}', raw)
        return
    if extra := sorted(value.keys() - {"name", "arguments"}):
        reading.problem("bad_arguments", f'{extra[0]!r} is no key of a call; pass it within "arguments"', raw)
        return
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = _whole_json(arguments)
        except JSONFault as fault:
            detail = f'"arguments" is a string that is no valid JSON: {fault}; write it as an object'
            reading.problem("bad_arguments", detail, raw)
            return
    if not isinstance(arguments, dict):
        detail = f'"arguments" must be an object such as {{"name": value}}, got {_kind(arguments)}'
        reading.problem("bad_arguments", detail, raw)
        return
    reading.calls.append(ToolCall(reading.next_id, name.strip(), arguments))


def _whole_json(text: str) -> Any:
    value, end = read_json(text, 0)
    if extra := text[end:].strip():
        raise JSONFault(f"{extra[:40]!r} follows it")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
