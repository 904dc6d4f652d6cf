"""Response threads: the conversations that ``previous_response_id`` names."""

from __future__ import annotations

from agentrl.agent_server.api.api_error import ApiError
from agentrl.types import Message


class ResponseThreads:
    """An episode's conversations by the id of their last response.

    They are kept as the client has them, without instructions.
    """

    def __init__(self) -> None:
        self._threads: dict[str, tuple[Message, ...]] = {}

    def add(self, response_id: str, messages: tuple[Message, ...]) -> None:
        """Adds the conversation that ends with a response."""
        self._threads[response_id] = messages

    def find(self, response_id: str) -> tuple[Message, ...]:
        """The conversation up to a response.

        Raises:
            ApiError: 400, as from OpenAI: the episode has no such response.
        """
        if response_id not in self._threads:
            raise ApiError(
                400,
                "previous_response_not_found",
                f"previous_response_id={response_id!r} names no response of this episode; "
                "send the whole input",
            )
        return self._threads[response_id]
