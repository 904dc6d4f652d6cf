"""Viewer error: a refused request, with its HTTP status and a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import AgentRLError
from agentrl.guards.secret_mask import beginning


class ViewerError(AgentRLError):
    """Answered as ``{"error": message}``.

    Args:
        status: the HTTP status.
        message: what was asked, the rule, and the remedy.
    """

    boundary = "viewer"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return ViewerError, (self.status, str(self))


def not_found(message: str) -> ViewerError:
    """Of a thing that the run does not have."""
    return ViewerError(404, message)


def bad_request(message: str) -> ViewerError:
    """Of a request that cannot be answered by anything."""
    return ViewerError(400, message)


def fault_of(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of what pydantic found: where, the rule, and the value."""
    first = errors[0]
    rule = str(first["msg"]).removeprefix("Value error, ")
    place = ".".join(map(str, first["loc"]))
    return (
        f"{place}: {rule}, got {beginning(str(first.get('input')), 100)!r}"
        if place
        else rule
    )
