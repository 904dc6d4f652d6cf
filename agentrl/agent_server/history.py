"""History: finds the turn whose conversation a request's messages repeat and extend.

- The policy's messages are compared by content and never encoded again.
- Call ids are not compared, because the server assigns them.
- A client may leave out reasoning, which stays in the sequence.
- Any other difference makes another history, which begins a new sequence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.agent_server.api.constraints import AnswerConstraints
from agentrl.rollouts.builder import SequenceState
from agentrl.types import Message, ToolCall, ToolSpec


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
    constraints: AnswerConstraints = field(default_factory=AnswerConstraints)
    hidden_calls: tuple[ToolCall, ...] = ()
    extended: bool = False
    answered_at: float = field(default_factory=time.monotonic)


class HistoryIndex:
    """The conversations of an episode."""

    def __init__(self) -> None:
        # the longest conversation first; among equals, the newest first
        self._entries: list[HistoryEntry] = []

    def add(self, entry: HistoryEntry) -> None:
        """Adds the conversation of an answered turn."""
        length = len(entry.client_messages)
        position = 0
        while (
            position < len(self._entries) and len(self._entries[position].client_messages) > length
        ):
            position += 1
        self._entries.insert(position, entry)

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
                and not any(message["role"] == "assistant" for message in new)
                and all(map(_same, old, messages))
            ):
                return entry, new
        return None, tuple(messages)


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
