"""What a family of chat templates has of its own, beside its template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types import Message

__all__ = ["Family", "as_they_are"]


def as_they_are(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for templates that take the OpenAI shape with ``arguments`` as a mapping."""
    return [dict(message) for message in messages]


@dataclass(frozen=True, slots=True)
class Family:
    """How a template of the family is told from others, fed, and ended.

    Args:
        name: as ``model.renderer`` has it.
        signs: added tokens that the tokenizer has and the template writes.
        stops: tokens that end an assistant's turn, beside the one that the template writes at its end.
        adapt: messages in the shape that the template wants.
        turn_end: what a turn ends with where the template writes nothing there itself; None where it does.
    """

    name: str
    signs: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    adapt: Callable[[Sequence[Message]], list[dict[str, Any]]] = as_they_are
    turn_end: Callable[[Message], str] | None = None
