"""Answer: writes a turn as the answer of one API, whole or as server-sent events."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from agentrl.agent_server.api.api_error import ApiError
from agentrl.agent_server.api.chat_request import ChatRequest
from agentrl.agent_server.response_threads import ResponseThreads
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.rollouts.turns import TurnResult

__all__ = ["Answer"]


class Answer(ABC):
    """The answer to one request; an API's subclass knows its shapes.

    Attributes:
        chat: the request.
    """

    chat: ChatRequest

    @abstractmethod
    def body(self, turn: TurnResult, stream: StreamWriter) -> dict[str, Any]:
        """The whole answer as one JSON object."""

    @abstractmethod
    def opening(self) -> Iterator[str]:
        """The events before the first token."""

    @abstractmethod
    def delta(self, delta: Mapping[str, Any], stream: StreamWriter) -> Iterator[str]:
        """The events of a delta in the shape of chat completions."""

    @abstractmethod
    def closing(self, turn: TurnResult, stream: StreamWriter) -> Iterator[str]:
        """The events after the last delta."""

    @abstractmethod
    def failure(self, error: ApiError) -> str:
        """The event that ends a turn which failed after its answer had started."""

    def record(self, threads: ResponseThreads, turn: TurnResult) -> None:  # noqa: B027 - chat keeps none
        """Adds the conversation to ``threads``, if the API has any."""

    async def events(
        self, generating: asyncio.Future[TurnResult], stream: StreamWriter
    ) -> AsyncIterator[str]:
        """All events of the answer, each as soon as it is known."""
        try:
            for event in self.opening():
                yield event
            while not generating.done():
                for delta in stream.deltas():
                    for event in self.delta(delta, stream):
                        yield event
                await stream.wait(generating)
            turn = generating.result()
        except ApiError as error:
            yield self.failure(error)
            return
        finally:
            generating.cancel()  # the client has left
        for delta in stream.final_deltas(turn):
            for event in self.delta(delta, stream):
                yield event
        for event in self.closing(turn, stream):
            yield event
