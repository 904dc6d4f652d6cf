"""Which turn of an episode a request goes on from: the one whose conversation its messages repeat and extend.

What the policy wrote is recognised by what it says, never encoded again: the ids of calls are ours and are not
compared, and reasoning that the client leaves out still stands in the sequence. Everything else that differs is
another history, which begins a sequence of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.agent_server.api.demands import Demands
from agentrl.rollouts.builder import SequenceState
from agentrl.types import Message, ToolCall, ToolSpec

__all__ = ["Histories", "Place"]


@dataclass(slots=True, eq=False)
class Place:
    """Where a sequence of the episode stands, with what was on offer there.

    Args:
        head: after the turn; its messages are those that the model has.
        told: the same conversation as the client has it: without the words of demands, its answer as it was told.
        tools: that the turn was given.
        demands: that the conversation says hold.
        kept: calls of the turn that the client was not told.
        taken: a request goes on from here, or did.
        answered_at: when the turn was answered, on the monotonic clock.
    """

    head: SequenceState
    told: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    demands: Demands = field(default_factory=Demands)
    kept: tuple[ToolCall, ...] = ()
    taken: bool = False
    answered_at: float = field(default_factory=time.monotonic)


class Histories:
    """The places of an episode."""

    def __init__(self) -> None:
        self._places: list[
            Place
        ] = []  # the longest conversation first, the newest first among equals

    def add(self, place: Place) -> None:
        """A turn was made."""
        length = len(place.told)
        before = next(
            (n for n, other in enumerate(self._places) if len(other.told) <= length),
            len(self._places),
        )
        self._places.insert(before, place)

    def find(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]
    ) -> tuple[Place | None, tuple[Message, ...]]:
        """The place that a conversation goes on from and what is new in it; no place for a history of its own."""
        for place in self._places:
            length = len(place.told)
            new = tuple(messages[length:])
            if (
                new
                and place.tools == tools
                and not any(message["role"] == "assistant" for message in new)
                and all(
                    _same(ours, theirs) for ours, theirs in zip(place.told, messages, strict=False)
                )
            ):
                return place, new
        return None, tuple(messages)


def _same(ours: Message, theirs: Message) -> bool:
    if ours["role"] != theirs["role"] or (ours["content"] or "") != (theirs["content"] or ""):
        return False
    if ours["role"] != "assistant":
        return True
    said = theirs.get("reasoning_content")
    if said is not None and said.strip() != ours.get("reasoning_content", "").strip():
        return False
    return _calls(ours) == _calls(theirs)


def _calls(message: Message) -> list[tuple[str, object]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", [])
    ]
