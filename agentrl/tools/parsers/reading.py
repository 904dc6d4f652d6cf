"""Reading: collects the calls, problems and content of a completion, and judges JSON calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.tools.parsers.strict_json import JSONFault, read_json
from agentrl.types import CallProblem, Message, ParsedMessage, ProblemKind, ToolCall

_MAX_DETAIL = 600
_MOST = 256
"""Calls of one completion that are read: far more than any turn may make, and few enough to take no
time.
"""


@dataclass
class Reading:
    """Calls, problems and content in the order written, with the numbering that calls and problems
    share.

    Args:
        one_call: the format's chat templates have room for one call a turn, so a second one is a
            problem.
    """

    one_call: bool = False
    calls: list[ToolCall] = field(default_factory=list)
    problems: list[CallProblem] = field(default_factory=list)
    content: list[str] = field(default_factory=list)

    @property
    def next_id(self) -> str:
        return f"call_{len(self.calls) + len(self.problems)}"

    @property
    def full(self) -> bool:
        """Whether no more calls are read; what follows is for ``rest``."""
        return len(self.calls) + len(self.problems) >= _MOST

    def blocks(
        self,
        text: str,
        mark: re.Pattern[str],
        ends: tuple[str, str],
        read: Callable[[int], int],
        *,
        keep_blanks: bool = True,
    ) -> None:
        """Read a completion whose calls stand between two marks.

        Args:
            text: the completion without its thoughts.
            mark: finds the two, and further texts that are no words.
            ends: with which a call opens and closes.
            read: reads the call that opens at a position; gives the position where the search goes
                on.
            keep_blanks: whether white space between two marks was said.
        """
        opens, closes = ends
        position = 0
        while not self.full and (found := mark.search(text, position)):
            between = text[position : found.start()]
            self.content.append(between if keep_blanks or between.strip() else "")
            position = found.end()
            if found.group() == closes:
                detail = f"{closes} closes nothing; begin a call with {opens}"
                self.problem("unclosed", detail, closes)
            elif found.group() == opens:
                position = read(found.start())
        self.rest(text[position:], ends)

    def rest(self, text: str, marks: Iterable[str]) -> None:
        """The end of a completion, in which no call is read.

        Args:
            text: all that follows what was read.
            marks: with which a call begins or ends, to count the calls that are left in ``text``
                once ``full``.
        """
        self.content.append(text)
        if self.full and (count := max(text.count(mark) for mark in marks)):
            detail = (
                f"{count} more calls of this turn were not read: {_MOST} are; make fewer at once"
            )
            self.problems.append(CallProblem(self.next_id, "too_many", detail, "", count))

    def call(self, name: str, arguments: Mapping[str, Any], raw: str) -> None:
        """A call that can be run."""
        if self.one_call and self.calls:
            detail = "one call a turn can be run; make this one when the first is answered"
            self.problem("second_call", detail, raw)
            return
        self.calls.append(ToolCall(self.next_id, name, arguments))

    def problem(self, kind: ProblemKind, detail: str, raw: str) -> None:
        """What looks like a call and is none; it stays part of what was said, and its text is
        quoted in short.
        """
        if len(detail) > _MAX_DETAIL:
            detail = f"{detail[:_MAX_DETAIL]}…"
        self.problems.append(CallProblem(self.next_id, kind, detail, raw))
        self.content.append(raw)

    def object_call(
        self, value: Any, raw: str, *, key: str, form: str, also: tuple[str, ...] = ()
    ) -> None:
        """Judges a JSON value that should be ``{"name": ..., key: {...}}``.

        Args:
            value: as read.
            raw: the text that it was written as, marks included.
            key: what the arguments are called.
            form: a call as it should be written, for messages.
            also: further keys that may stand there and say nothing.
        """
        if not isinstance(value, dict):
            self.problem(
                "malformed_json",
                f"a call is a JSON object, not {kind_of(value)}; write it as {form}",
                raw,
            )
            return
        name = value.get("name")
        if not isinstance(name, str) or not name.strip():
            found = f"got {kind_of(name)}" if "name" in value else f"the keys are {sorted(value)}"
            self.problem(
                "missing_name", f'the call needs "name", the tool\'s name as a string; {found}', raw
            )
            return
        if extra := sorted(value.keys() - {"name", key, *also}):
            self.problem(
                "bad_arguments", f'{extra[0]!r} is no key of a call; pass it within "{key}"', raw
            )
            return
        self.named_call(name.strip(), value.get(key, {}), raw, what=f'"{key}"')

    def written_call(self, name: str, arguments: str, raw: str, *, form: str) -> None:
        """Judges a call whose arguments are a text of JSON; ``form`` is one as it should be
        written.
        """
        if not name:
            self.problem("missing_name", f"the call has no name; write it as {form}", raw)
            return
        try:
            value = whole_json(arguments)
        except JSONFault as fault:
            detail = f"the arguments are no valid JSON: {fault}; write {form}"
            self.problem("malformed_json", detail, raw)
        else:
            self.named_call(name, value, raw, what="the arguments' JSON")

    def named_call(self, name: str, arguments: Any, raw: str, *, what: str) -> None:
        """Judges the arguments of a call whose name is known; ``what`` they are called, for
        messages.
        """
        if isinstance(arguments, str):
            try:
                arguments = whole_json(arguments)
            except JSONFault as fault:
                detail = f"{what} is a string that is no valid JSON: {fault}; write it as an object"
                self.problem("bad_arguments", detail, raw)
                return
        if not isinstance(arguments, dict):
            detail = f'{what} must be an object such as {{"name": value}}, got {kind_of(arguments)}'
            self.problem("bad_arguments", detail, raw)
            return
        self.call(name, arguments, raw)

    def message(self, reasoning: str | None) -> ParsedMessage:
        """All of it as an assistant's message."""
        message: Message = {"role": "assistant", "content": "".join(self.content).strip()}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [call.openai() for call in self.calls]
        return ParsedMessage(message, tuple(self.calls), tuple(self.problems))


def whole_json(text: str) -> Any:
    """The one JSON value that ``text`` is.

    Raises:
        JSONFault: it is none, or something follows it.
    """
    value, end = read_json(text, 0)
    if extra := text[end:].strip():
        raise JSONFault(f"{extra[:40]!r} follows it", end)
    return value


def kind_of(value: Any) -> str:
    """A JSON value's kind in words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")
