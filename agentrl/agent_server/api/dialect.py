"""Dialect: what the APIs have in common that ask the policy for a turn.

Each dialect reads its request into the one form ``ChatRequest`` and writes the one ``TurnResult``
in its own shapes; the episode between them knows no dialect.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentrl.agent_server.api.api_error import PolicyApiError
from agentrl.agent_server.api.request import ChatRequest
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.rollouts.turns import TurnResult
from agentrl.types import Message


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came.

    Args:
        body: its JSON object.
        headers: its headers, by their names in lower case.
        threads: the conversations of the Responses API up to each response, by its id.
        strict: refuse keys and types of tools that are unknown; otherwise they are left out and
            noted in the turn.
    """

    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    threads: MutableMapping[str, tuple[Message, ...]] = field(default_factory=dict)
    strict: bool = False


class Answer(ABC):
    """The answer to one request, in the shapes of a dialect.

    Args:
        asked: the request as it came.

    Attributes:
        path: of the dialect's route, behind ``/v1/``.
        chat: the request in the one form of all dialects.

    Raises:
        PolicyApiError: 400, with the key, the rule and the value found.
        WireFault: a part of the conversation or a tool has none of the dialect's forms.
    """

    path: ClassVar[str]

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.chat = self._parse(asked)

    @abstractmethod
    def _parse(self, asked: Asked) -> ChatRequest: ...

    @staticmethod
    def error_body(error: PolicyApiError) -> dict[str, Any]:
        """An error in the dialect's shape; this one is OpenAI's."""
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return {
            "error": {
                "message": str(error),
                "type": kind,
                "param": None,
                "code": error.code,
            }
        }

    # Most dialects have the client send its whole conversation.
    def record(self, turn: TurnResult) -> None:  # noqa: B027
        """Keeps what a later request may name."""

    @abstractmethod
    def body(self, turn: TurnResult, stream: StreamWriter) -> dict[str, Any]:
        """The whole answer."""

    @abstractmethod
    def opening(self) -> Iterator[str]:
        """The events before the first token."""

    @abstractmethod
    def delta(self, delta: Mapping[str, Any], stream: StreamWriter) -> Iterator[str]:
        """The events of a delta, which is in the shape of chat completions."""

    @abstractmethod
    def closing(self, turn: TurnResult, stream: StreamWriter) -> Iterator[str]:
        """The events after the last delta."""

    def failure(self, error: PolicyApiError) -> str:
        """The event that ends a turn which failed after its stream had started."""
        return sse_event(self.error_body(error))


def sse_event(body: Mapping[str, Any]) -> str:
    """A server-sent event, named by the body's ``type`` where it has one."""
    name = f"event: {body['type']}\n" if "type" in body else ""
    # in ASCII: some clients end a line at U+2028
    return f"{name}data: {json.dumps(body)}\n\n"
