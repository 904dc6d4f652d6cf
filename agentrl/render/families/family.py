"""Family: the specifics of a family of chat templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types import Message


def as_they_are(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the OpenAI shape with ``arguments`` as a mapping, which most templates take."""
    return [dict(message) for message in messages]


@dataclass(frozen=True, slots=True)
class Family:
    """How to detect a template of the family, what it takes, and how its turns end.

    Args:
        name: as in ``model.renderer``.
        signs: added tokens that the tokenizer has and the template writes.
        stops: further tokens that end an assistant's turn, beside the one that the template writes.
        adapt: converts messages to the template's shape.
        turn_end: the end of a turn, if the template writes none itself.
    """

    name: str
    signs: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    adapt: Callable[[Sequence[Message]], list[dict[str, Any]]] = as_they_are
    turn_end: Callable[[Message], str] | None = None
