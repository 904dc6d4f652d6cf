"""History: the answered conversations of an episode, and the turns that they end with.

- A request belongs to the turn whose conversation its messages repeat and extend.
- The policy's messages are compared by content and never encoded again.
- Call ids are not compared, because the server assigns them.
- A client may leave out reasoning, which stays in the sequence.
- Any other difference makes another history, which begins a new sequence.
"""

from __future__ import annotations

import time
from bisect import insort_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.agent_server.api.constraints import AnswerConstraints
from agentrl.rollouts.builder import SequenceState, TrajectoryBuilder
from agentrl.rollouts.tool_calls import in_order
from agentrl.rollouts.turns import TurnResult
from agentrl.types import CallProblem, CallRecord, Message, ToolCall, ToolResult, ToolSpec, Turn


@dataclass(slots=True, eq=False)
class HistoryEntry:
    """A conversation of the episode that ends with an answered turn.

    Args:
        sequence: the sequence after the turn; its messages are those of the model.
        client_messages: the same conversation as the client has it, without the instructions of
            constraints and with the answer that it got.
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
        results = {m["tool_call_id"]: str(m["content"]) for m in observed if m["role"] == "tool"}
        stored = _turn(builder, self.sequence)
        calls = list(stored.calls)
        for number, record in enumerate(calls):
            call = record.call
            if call is not None and record.result is None and call.id in results:
                result = ToolResult(call.id, call.name, results[call.id], None, seconds)
                calls[number] = replace(record, result=result)
        builder.turns[stored.index] = replace(stored, calls=tuple(calls))


class HistoryIndex:
    """The conversations of an episode."""

    def __init__(self) -> None:
        # the longest conversation first; among equals, the newest first
        self._entries: list[HistoryEntry] = []

    def add(self, entry: HistoryEntry) -> None:
        """Adds the conversation of an answered turn."""
        insort_left(self._entries, entry, key=lambda other: -len(other.client_messages))

    def find(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]
    ) -> tuple[HistoryEntry | None, tuple[Message, ...]]:
        """The longest entry that a conversation extends, and its new messages.

        Returns:
            No entry and all messages for a conversation that extends none.
        """
        for entry in self._entries:
            old = entry.client_messages
            new = tuple(messages[len(old) :])
            if (
                new
                and entry.tools == tools
                # A turn that the policy did not make has no place in its sequence.
                and not any(message["role"] == "assistant" for message in new)
                and all(map(_same, old, messages))
            ):
                return entry, new
        return None, tuple(messages)


def note_turn(builder: TrajectoryBuilder, turn: TurnResult, notes: Mapping[str, Any]) -> None:
    """Stores the calls of a turn, without results, and the notes that are not empty."""
    stored = _turn(builder, turn.sequence)
    written = in_order(turn.action.tool_calls, turn.action.problems)
    builder.turns[stored.index] = replace(
        stored,
        calls=tuple(map(_without_result, written)),
        info={**stored.info, **{name: value for name, value in notes.items() if value}},
    )


def _without_result(written: ToolCall | CallProblem) -> CallRecord:
    if isinstance(written, ToolCall):
        return CallRecord(written, None, None)
    return CallRecord(None, written, None)


def _turn(builder: TrajectoryBuilder, sequence: SequenceState) -> Turn:
    assert sequence.parent is not None, "the sequence ends with a turn"
    return builder.turns[sequence.parent]


def _same(ours: Message, theirs: Message) -> bool:
    if ours["role"] != theirs["role"] or (ours["content"] or "") != (theirs["content"] or ""):
        return False
    if ours["role"] != "assistant":
        return True
    reasoning = theirs.get("reasoning_content")
    if reasoning is not None and reasoning.strip() != ours.get("reasoning_content", "").strip():
        return False
    return _calls(ours) == _calls(theirs)


def _calls(message: Message) -> list[tuple[str, object]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", [])
    ]
