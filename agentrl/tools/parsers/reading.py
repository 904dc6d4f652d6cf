"""Reading: what the formats share; thoughts, marks, calls, problems and content of a completion."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias

from agentrl.guards.parsing import JSONFault, read_json
from agentrl.guards.secret_mask import beginning
from agentrl.types import (
    CallProblem,
    Message,
    ParsedMessage,
    ProblemKind,
    ToolCall,
    ToolSpec,
)
from agentrl.types.messages import split_reasoning

_MAX_DETAIL = 600
_MOST = 256
"""Calls of one completion that are read: far more than any turn may make, and few enough to take no
time.
"""

Call: TypeAlias = tuple[str, Mapping[str, Any]]
"""The name and the arguments of a call."""


def written_at(call_id: str) -> float:
    """The number in a call's or problem's id, which is the order written; other ids come last."""
    digits = call_id.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else float("inf")


@dataclass(frozen=True, slots=True)
class Marks:
    """By what a format's calls are told from words.

    Args:
        opens: texts that begin something which cannot be read before its end.
        closes: texts that end it; without any, it ends with the completion.
        others: further texts that are no words.
    """

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


# No error by name: it is what a text has, not what a program does.
class CallFault(ValueError):  # noqa: N818
    """Why what looks like a call is none.

    Args:
        kind: of the problem that it is.
        detail: the correction, in words for the model.
    """

    def __init__(self, kind: ProblemKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass
class CallReading:
    """Calls, problems and content in the order written, with the numbering that calls and problems
    share.

    Args:
        source: the completion; None where a server read the calls, whose places are unknown.
        position: where the search for what was written goes on in it.
        one_call: the format's chat templates have room for one call a turn, so a second one is a
            problem.
    """

    source: str | None = None
    position: int = 0
    one_call: bool = False
    calls: list[ToolCall] = field(default_factory=list)
    problems: list[CallProblem] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, rest: str, *, one_call: bool = False) -> CallReading:
        """Of a completion, from the ``rest`` on that ends it and follows its thoughts."""
        return cls(text, len(text) - len(rest), one_call)

    @property
    def next_id(self) -> str:
        return f"call_{len(self.calls) + len(self.problems)}"

    @property
    def full(self) -> bool:
        """Whether no more calls are read; what follows is for ``rest``."""
        return len(self.calls) + len(self.problems) >= _MOST

    def add(self, raw: str, call: Callable[[], Call]) -> None:
        """Adds what ``call`` gives, or the problem that it raises.

        Args:
            raw: the text that the call was written as, marks included.
            call: gives a call that can be run, or raises a CallFault.
        """
        try:
            name, arguments = call()
            if self.one_call and self.calls:
                raise CallFault(
                    "second_call",
                    "one call a turn can be run; make this one when the first is answered",
                )
        except CallFault as fault:
            self.problem(fault.kind, str(fault), raw)
        else:
            self._mark(raw)
            self.calls.append(ToolCall(self.next_id, name, arguments))

    def rest(self, text: str, marks: Iterable[str]) -> None:
        """The end of a completion, in which no call is read.

        Args:
            text: all that follows what was read.
            marks: with which a call begins or ends, to count the calls that are left in ``text``
                once ``full``.
        """
        self.content.append(text)
        if self.full and (count := max(text.count(mark) for mark in marks)):
            unread = f"{count} more calls of this turn were not read"
            detail = f"{unread}: {_MOST} are; make fewer at once"
            self.problems.append(CallProblem(self.next_id, "too_many", detail, "", count))

    def problem(self, kind: ProblemKind, detail: str, raw: str) -> None:
        """What looks like a call and is none; it stays part of what was said, and its text is
        quoted in short.
        """
        self._mark(raw)
        problem = CallProblem(self.next_id, kind, beginning(detail, _MAX_DETAIL), raw)
        self.problems.append(problem)
        self.content.append(raw)

    def _mark(self, raw: str) -> None:
        """Keeps where the next call or problem stands: they come in the order written."""
        if self.source is None:
            return
        begin = self.source.index(raw, self.position)
        self.position = begin + len(raw)
        self.spans[self.next_id] = (begin, self.position)

    def message(self, reasoning: str | None) -> ParsedMessage:
        """All of it as an assistant's message."""
        message: Message = {"role": "assistant", "content": "".join(self.content).strip()}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [call.openai() for call in self.calls]
        return ParsedMessage(message, tuple(self.calls), tuple(self.problems), self.spans)


@dataclass(frozen=True, slots=True)
class Body:
    """What stands behind the mark that opens a call.

    Args:
        end: where the search for the mark that closes the call begins.
        call: gives the call, from the position of that mark, or raises a CallFault.
        fault: why the body cannot be read, for a call that is not closed; empty where it can.
    """

    end: int
    call: Callable[[int], Call]
    fault: str = ""


class FormatParser(ABC):
    """Reads the calls of a format, one after the other; other text is the content, and a leading
    ``<think>`` block the thoughts, with any call within it.
    """

    marks: ClassVar[Marks]
    opening: ClassVar[re.Pattern[str]]
    """With which a call begins."""
    before: ClassVar[str | None] = None
    """Without an opening tag, thoughts end only in front of the first of these."""
    counted: ClassVar[tuple[str, ...]] = ()
    """With which a call begins or ends, to count those that are left over; all marks by default."""
    one_call: ClassVar[bool] = False
    """The format's chat templates have room for one call a turn."""

    def find(self, text: str, position: int) -> int | None:
        """Where the next call begins; None where there is none."""
        found = self.opening.search(text, position)
        return found.start() if found else None

    @abstractmethod
    def read(
        self, text: str, start: int, reading: CallReading, tools: Sequence[ToolSpec]
    ) -> int:
        """Reads what begins at ``start``; gives the position behind it."""

    def said(self, text: str, is_first: bool) -> str:
        """What of the text in front of a call was said; the first one follows no other call."""
        return text

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser."""
        reasoning, rest = split_reasoning(text, before=self.before)
        reading = CallReading.of(text, rest, one_call=self.one_call)
        position = 0
        while not reading.full and (start := self.find(rest, position)) is not None:
            reading.content.append(self.said(rest[position:start], position == 0))
            position = self.read(rest, start, reading, tools)
        counted = self.counted or (*self.marks.opens, *self.marks.closes)
        reading.rest(rest[position:], counted)
        return reading.message(reasoning)


class BlockParser(FormatParser):
    """Reads the calls of a format that writes each between two marks.

    A call without its closing mark is a problem (``unclosed``), since it may have been cut.
    """

    keep_blanks: ClassVar[bool] = True
    """Whether white space between two marks was said."""

    def __init_subclass__(cls) -> None:
        if "marks" in vars(cls):
            marks = cls.marks
            every = (*marks.opens, *marks.closes, *marks.others)
            cls.opening = re.compile("|".join(map(re.escape, every)))
            cls.before = marks.opens[0]

    @abstractmethod
    def read_body(self, text: str, start: int, tools: Sequence[ToolSpec]) -> Body:
        """What stands at ``start``, behind an opening mark."""

    def said(self, text: str, is_first: bool) -> str:
        """See ``FormatParser.said``."""
        return text if self.keep_blanks or text.strip() else ""

    def read(
        self, text: str, start: int, reading: CallReading, tools: Sequence[ToolSpec]
    ) -> int:
        """A mark, and the call behind one that opens it."""
        (opens,) = self.marks.opens
        (closes,) = self.marks.closes
        if text.startswith(closes, start):
            detail = f"{closes} closes nothing; begin a call with {opens}"
            reading.problem("unclosed", detail, closes)
            return start + len(closes)
        if not text.startswith(opens, start):
            return self.opening.match(text, start).end()  # type: ignore[union-attr] # it was found
        body = self.read_body(text, start + len(opens), tools)
        end = self.opening.search(text, body.end)
        if end and end.group() == closes:
            reading.add(text[start : end.end()], partial(body.call, end.start()))
            return end.end()
        position = end.start() if end else len(text)
        detail = f"the call is not closed; end it with {closes}{body.fault}"
        reading.problem("unclosed", detail, text[start:position])
        return position


class PairParser(BlockParser):
    """Reads a format whose calls are a name, and a key and a value for each argument between marks
    of their own.
    """

    name: ClassVar[re.Pattern[str]]
    """The tool's name, as its first group."""
    begins: ClassVar[str]
    """The same in words."""
    pair: ClassVar[re.Pattern[str]]
    """A ``key`` and a ``value``, with ``whole`` at its end; or what of it is in its order."""
    pair_form: ClassVar[str]
    """What is wrong with text that is no pair, in words."""
    key_word: ClassVar[str]
    """What a key is called."""
    form: ClassVar[str]
    """A call as it should be written."""
    end: ClassVar[re.Pattern[str] | None] = None
    """What must follow the last pair."""
    last_blank: ClassVar[str] = ""
    """What belongs to the format at a value's end."""
    words: ClassVar[Mapping[str, Any]] = {}
    """Further values by how they are written, where the schema admits no text."""

    def read_body(self, text: str, start: int, tools: Sequence[ToolSpec]) -> Body:
        """A name and its pairs."""
        name = self.name.match(text, start)
        slip = position = name.end() if name else start
        written: list[tuple[str, str]] = []
        while pair := self.pair.match(text, position):
            slip = pair.end()
            if not pair["whole"]:
                break
            written.append(
                (pair["key"].strip(), pair["value"].removesuffix(self.last_blank))
            )
            position = slip
        end = self.end.match(text, position) if self.end else None
        ended = self.end is None or end is not None
        last = end.end() if end else position

        def call(close: int) -> Call:
            if name is None:
                raise CallFault(
                    "missing_name",
                    f"the call does not begin with {self.begins}; write it as {self.form}",
                )
            extra = text[last:close].strip()
            if extra or not ended:
                raise CallFault(
                    "bad_arguments",
                    f"{beginning(extra, 40)!r} {self.pair_form}; write a call as {self.form}",
                )
            if len(dict(written)) < len(written):
                twice = Counter(key for key, _ in written).most_common(1)[0][0]
                raise CallFault(
                    "bad_arguments", f"the {self.key_word} {twice!r} is given twice"
                )
            return name[1], schema_values(name[1], dict(written), tools, self.words)

        return Body(max(slip, last), call)


def object_call(value: Any, key: str, form: str, also: tuple[str, ...] = ()) -> Call:
    """The call that a JSON value is, which should be ``{"name": ..., key: {...}}``.

    Args:
        value: as read.
        key: what the arguments are called.
        form: a call as it should be written, for messages.
        also: further keys that may stand there and say nothing.

    Raises:
        CallFault: it is none.
    """
    if not isinstance(value, dict):
        raise CallFault(
            "malformed_json",
            f"a call is a JSON object, not {kind_of(value)}; write it as {form}",
        )
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        found = (
            f"got {kind_of(name)}" if "name" in value else f"the keys are {sorted(value)}"
        )
        raise CallFault(
            "missing_name", f'the call needs "name", the tool\'s name as a string; {found}'
        )
    if extra := sorted(value.keys() - {"name", key, *also}):
        raise CallFault(
            "bad_arguments", f'{extra[0]!r} is no key of a call; pass it within "{key}"'
        )
    return named_call(name.strip(), value.get(key, {}), f'"{key}"')


def written_call(name: str, arguments: str, form: str) -> Call:
    """A call whose arguments are a text of JSON; ``form`` is one as it should be written.

    Raises:
        CallFault: it has no name, or the text is no JSON object.
    """
    if not name:
        raise CallFault("missing_name", f"the call has no name; write it as {form}")
    try:
        value = whole_json(arguments)
    except JSONFault as fault:
        raise CallFault(
            "malformed_json", f"the arguments are no valid JSON: {fault}; write {form}"
        ) from None
    return named_call(name, value, "the arguments' JSON")


def named_call(name: str, arguments: Any, what: str) -> Call:
    """A call whose name is known; ``what`` its arguments are called, for messages.

    Raises:
        CallFault: the arguments are no object, nor the text of one.
    """
    if isinstance(arguments, str):
        try:
            arguments = whole_json(arguments)
        except JSONFault as fault:
            raise CallFault(
                "bad_arguments",
                f"{what} is a string that is no valid JSON: {fault}; write it as an object",
            ) from None
    if not isinstance(arguments, dict):
        raise CallFault(
            "bad_arguments",
            f'{what} must be an object such as {{"name": value}}, got {kind_of(arguments)}',
        )
    return name, arguments


def whole_json(text: str) -> Any:
    """The one JSON value that ``text`` is.

    Raises:
        JSONFault: it is none, or something follows it.
    """
    value, end = read_json(text, 0)
    if extra := text[end:].strip():
        raise JSONFault(f"{beginning(extra, 40)!r} follows it", end)
    return value


def schema_values(
    name: str,
    written: Mapping[str, str],
    tools: Sequence[ToolSpec],
    words: Mapping[str, Any],
) -> dict[str, Any]:
    """Arguments of a format that writes texts bare and all else as JSON: what the schema calls a
    string is the text itself, and anything else JSON where it can be read so.

    Args:
        name: the tool's.
        written: by key.
        tools: those on offer.
        words: further values by how they are written, where the schema admits no text.
    """
    schemas = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
    properties = schemas.get(name, {})
    return {
        key: _schema_value(text, _admitted_types(properties.get(key)), words)
        for key, text in written.items()
    }


def _schema_value(text: str, types: set[str] | None, words: Mapping[str, Any]) -> Any:
    """A value by the types that the schema admits; None where it does not tell."""
    if types == {"string"}:
        return text
    bare = text if types is None or "string" in types else words.get(text, text)
    try:
        value = whole_json(text)
    except JSONFault:
        # Where the schema wants something else, the executor says so.
        return bare
    if types is None or "string" not in types or _JSON_TYPES[type(value)] & types:
        return value
    # Such as 12 for text or null.
    return text


# A text is no value of JSON here: one with quotes around it is a text with quotes.
_JSON_TYPES: Mapping[type, set[str]] = {
    dict: {"object"},
    list: {"array"},
    str: set(),
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    type(None): {"null"},
}


def _admitted_types(schema: Any) -> set[str] | None:
    """The types of JSON Schema that a value may have; None where the schema does not tell."""
    if not isinstance(schema, Mapping):
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {str(one) for one in declared}
    types: set[str] = set()
    for choice in schema.get("anyOf") or schema.get("oneOf") or (None,):
        if (admitted := _admitted_types(choice)) is None:
            return None
        types |= admitted
    return types


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
