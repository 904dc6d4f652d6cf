"""History: the answered conversations of an episode, and the turns that they end with.

- A request belongs to the turn whose conversation its messages repeat and extend.
- Messages are compared as they were said; in a loose history by a normal form.
- The messages of a turn's sequence are never encoded again, however a client repeats them.
- Call ids are not compared, because the server assigns them.
- A client may leave out reasoning, which stays in the sequence.
- Any other difference makes another history, which begins a new sequence.
"""

from __future__ import annotations

import time
from bisect import insort_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

from agentrl.agent_server.api.constraints import AnswerConstraints
from agentrl.rollouts.builder import SequenceState, TrajectoryBuilder
from agentrl.rollouts.tool_calls import in_order
from agentrl.rollouts.turns import TurnResult
from agentrl.types import (
    CallProblem,
    CallRecord,
    Message,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

_OPEN, _CLOSE = "<system-reminder>", "</system-reminder>"


@dataclass(slots=True, eq=False)
class HistoryEntry:
    """A conversation of the episode that ends with an answered turn.

    Args:
        sequence: the sequence after the turn; its messages are those of the model.
        client_messages: the same conversation as the client first sent it, without the
            instructions of constraints and with the answers that it got.
        tools: the tools of the turn.
        constraints: the constraints that the conversation states.
        hidden_calls: calls of the turn that the client did not get.
        extended: whether a request has continued from here.
        answered_at: the time of the answer, on the monotonic clock.
    """

    sequence: SequenceState
    client_messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    constraints: AnswerConstraints
    hidden_calls: tuple[ToolCall, ...]
    extended: bool = False
    answered_at: float = field(default_factory=time.monotonic)

    def note_results(self, builder: TrajectoryBuilder, observed: Sequence[Message]) -> None:
        """Stores the results that the agent brings, and the seconds since the turn's answer."""
        seconds = time.monotonic() - self.answered_at
        results = {
            m["tool_call_id"]: str(m["content"]) for m in observed if m["role"] == "tool"
        }
        stored = _turn(builder, self.sequence)
        calls = list(stored.calls)
        for number, record in enumerate(calls):
            call = record.call
            waits = record.result is None or not record.result.content
            if call is not None and waits and call.id in results:
                result = ToolResult(
                    call.id, call.name, results[call.id], record.error, seconds
                )
                calls[number] = replace(record, result=result)
        builder.turns[stored.index] = replace(stored, calls=tuple(calls))


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """Where a request continues.

    Args:
        entry: the turn that it extends; None if it begins a sequence.
        new: its messages behind that turn.
        repairs: messages before them that differ from what was said, counted by kind:
            ``white_space``, ``reminders``, ``thoughts``, ``arguments``.
        cause: why it begins a sequence; see ``HistoryIndex.find``.
        compared: what is compared of the conversation up to that turn.
    """

    entry: HistoryEntry | None
    new: tuple[Message, ...]
    compared: Sequence[_Compared] = ()
    repairs: Mapping[str, int] = field(default_factory=dict)
    cause: str = ""


class HistoryIndex:
    """The conversations of an episode.

    Args:
        loose: compare without what harnesses rewrite: white space, reminders, emptied thoughts and
            the spelling of numbers. System prompts are compared as they are.
    """

    def __init__(self, *, loose: bool = False) -> None:
        self._loose = loose
        # the longest conversation first; among equals, the newest first
        self._entries: list[tuple[HistoryEntry, list[_Compared]]] = []

    def add(self, entry: HistoryEntry, continued: Continuation) -> None:
        """Adds the conversation of an answered turn, which began or went on as ``find`` said."""
        # Turns share what they have in common: a conversation of n turns would take n² otherwise.
        said = entry.client_messages[-len(continued.new) - 1 :]
        own = (entry, [*continued.compared, *self._compared(said)])
        insort_left(self._entries, own, key=lambda other: -len(other[0].client_messages))

    def find(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]
    ) -> Continuation:
        """Where a conversation continues.

        - It extends the longest turn that it repeats exactly, or else the longest that it repeats.
        - Otherwise it begins a sequence. That is a ``sub_agent`` where no turn had its system
          prompt and its tools, and a ``compaction`` where it is no longer than the last
          conversation that had them. A longer one is ``edited``.
        """
        theirs = self._compared(messages)
        system = _system(theirs)
        repaired, last = None, None
        for entry, ours in self._entries:
            if entry.tools != tools or _system(ours) != system:
                continue
            if last is None or entry.answered_at > last[0].answered_at:
                last = entry, ours
            if len(theirs) < len(ours) or not all(map(_repeats, theirs, ours)):
                continue
            answer = theirs[len(ours) - 1].place
            new = tuple(messages[answer + 1 :])
            # A turn that the policy did not make has no place in its sequence.
            if not new or any(message["role"] == "assistant" for message in new):
                continue
            kinds = Counter(
                kind for pair in zip(ours, theirs, strict=False) for kind in _repairs(*pair)
            )
            new = _with_ids(new, messages[answer], entry.client_messages[-1])
            found = Continuation(entry, new, ours, kinds)
            if not kinds:
                return found
            repaired = repaired or found
        if repaired is not None:
            return repaired
        cause = "sub_agent"
        if last is not None:
            cause = "edited" if len(theirs) > len(last[1]) else "compaction"
        return Continuation(None, tuple(messages), cause=cause)

    def _compared(self, messages: Sequence[Message]) -> list[_Compared]:
        said = map(_said, messages)
        if not self._loose:
            return [_Compared(place, one, one) for place, one in enumerate(said)]
        both = [_Compared(place, one, _normal(one)) for place, one in enumerate(said)]
        # A message of nothing but reminders comes and goes with them.
        return [one for one in both if not _is_reminder(one)]


class _Said(NamedTuple):
    """What is compared of a message; ``thoughts`` are None where they are left out."""

    role: str
    content: Any
    thoughts: str | None
    calls: list[tuple[str, Any]]


class _Compared(NamedTuple):
    place: int
    said: _Said
    normal: _Said


def _said(message: Message) -> _Said:
    thoughts = message.get("reasoning_content")
    return _Said(
        message["role"],
        message["content"] or "",
        None if thoughts is None else thoughts.strip(),
        [
            (
                call["function"]["name"],
                _typed(call["function"]["arguments"], lambda number: number),
            )
            for call in message.get("tool_calls", ())
        ],
    )


def _normal(said: _Said) -> _Said:
    """What stays of a message when a harness writes it again."""
    if said.role == "system":
        return said
    plain = _squeezed if said.role == "assistant" else _without_reminders
    return _Said(
        said.role,
        _each_text(said.content, plain),
        _squeezed(said.thoughts or "") or None,
        [(name, _typed(arguments, _as_double)) for name, arguments in said.calls],
    )


def _is_reminder(one: _Compared) -> bool:
    said, normal = one.said, one.normal
    return (
        said.role == "user"
        and not normal.content
        and bool(_each_text(said.content, _squeezed))
    )


def _repeats(theirs: _Compared, ours: _Compared) -> bool:
    new, old = theirs.normal, ours.normal
    return (new.role, new.content, new.calls) == (old.role, old.content, old.calls) and (
        new.thoughts is None or new.thoughts == (old.thoughts or "")
    )


def _repairs(ours: _Compared, theirs: _Compared) -> Iterator[str]:
    """How a message that is repeated differs from what was said."""
    old, new = ours.said, theirs.said
    if old.content != new.content:
        same_words = _each_text(old.content, _squeezed) == _each_text(
            new.content, _squeezed
        )
        yield "white_space" if same_words else "reminders"
    if (old.thoughts or "") != (new.thoughts or ""):
        yield "thoughts"
    if old.calls != new.calls:
        yield "arguments"


def _system(compared: Sequence[_Compared]) -> list[Any]:
    return [
        one.said.content
        for one in takewhile(lambda one: one.said.role == "system", compared)
    ]


def _with_ids(
    new: Sequence[Message], theirs: Message, ours: Message
) -> tuple[Message, ...]:
    """New messages whose results have the ids of our calls, where the client renamed its own."""
    calls = zip(theirs.get("tool_calls", ()), ours.get("tool_calls", ()), strict=True)
    ids = {named["id"]: call["id"] for named, call in calls if named["id"] != call["id"]}
    if not ids:
        return tuple(new)
    return tuple(
        {
            **message,
            "tool_call_id": ids.get(message["tool_call_id"], message["tool_call_id"]),
        }
        if message["role"] == "tool"
        else message
        for message in new
    )


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _without_reminders(text: str) -> str:
    # A tool may say whatever the policy makes it say: a pattern would look for the end of each
    # reminder that is never closed, again and again.
    kept, at = [], 0
    while (first := text.find(_OPEN, at)) >= 0 and (last := text.find(_CLOSE, first)) >= 0:
        kept.append(text[at:first])
        at = last + len(_CLOSE)
    return _squeezed(" ".join([*kept, text[at:]]))


def _each_text(content: Any, change: Callable[[str], str]) -> Any:
    """Content with each of its texts changed, and without parts that then are empty."""
    if isinstance(content, str):
        return change(content)
    parts = [
        {**part, "text": change(part["text"])} if "text" in part else part
        for part in content
    ]
    return [part for part in parts if part.get("text", True)]


def _typed(value: Any, number: Callable[[float], float]) -> Any:
    """JSON in which true is not 1, with its numbers changed."""
    match value:
        case bool():
            return (value,)
        case int() | float():
            return number(value)
        case Mapping():
            return {name: _typed(own, number) for name, own in value.items()}
        case list():
            return [_typed(own, number) for own in value]
    return value


def _as_double(number: float) -> float:
    """A number as JavaScript has it, which writes long ones otherwise."""
    try:
        return float(number)
    except OverflowError:
        return number


def note_turn(
    builder: TrajectoryBuilder,
    turn: TurnResult,
    tools: Sequence[ToolSpec],
    notes: Mapping[str, Any],
) -> None:
    """Stores the calls of a turn, without results, and the notes that are not empty; a call of none
    of the ``tools`` on offer has its error already, since nobody may answer it.
    """
    stored = _turn(builder, turn.sequence)
    written = in_order(turn.action.tool_calls, turn.action.problems)
    builder.turns[stored.index] = replace(
        stored,
        calls=tuple(_without_answer(one, tools) for one in written),
        info={**stored.info, **{name: value for name, value in notes.items() if value}},
    )


def _without_answer(
    written: ToolCall | CallProblem, tools: Sequence[ToolSpec]
) -> CallRecord:
    if isinstance(written, CallProblem):
        return CallRecord(None, written, None)
    if any(tool.name == written.name for tool in tools):
        return CallRecord(written, None, None)
    return CallRecord(
        written, None, ToolResult(written.id, written.name, "", "unknown_tool")
    )


def _turn(builder: TrajectoryBuilder, sequence: SequenceState) -> Turn:
    assert sequence.parent is not None, "the sequence ends with a turn"
    return builder.turns[sequence.parent]
