"""The conversations that the responses of an episode ended, for requests that name one by ``previous_response_id``."""

from __future__ import annotations

from agentrl.agent_server.api.refusal import Refusal
from agentrl.types import Message

__all__ = ["Threads"]


class Threads:
    """Conversations by the id of the response that each ends with, as the client has them, without instructions."""

    def __init__(self) -> None:
        self._threads: dict[str, tuple[Message, ...]] = {}

    def add(self, response_id: str, messages: tuple[Message, ...]) -> None:
        """A response was made; ``messages`` end with it."""
        self._threads[response_id] = messages

    def find(self, response_id: str) -> tuple[Message, ...]:
        """The conversation up to a response.

        Raises:
            Refusal: 400, as from OpenAI; there is no such response in this episode.
        """
        if response_id not in self._threads:
            raise Refusal(
                400,
                "previous_response_not_found",
                f"previous_response_id={response_id!r} names no response of this episode; send the whole input",
            )
        return self._threads[response_id]
