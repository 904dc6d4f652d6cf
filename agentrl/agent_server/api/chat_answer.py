"""A turn as the answer to a chat completion: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.agent_server.api.chat_request import ChatRequest, Refusal
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import to_wire
from agentrl.rollouts.turns import TurnResult

__all__ = ["Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """How the answer to one request is written.

    Args:
        request: what is answered.
        completion_id: unique among the answers.
        created: seconds since the epoch.
    """

    request: ChatRequest
    completion_id: str
    created: int

    def body(self, made: TurnResult, telling: StreamWriter) -> dict[str, Any]:
        """The ``chat.completion`` object."""
        choice = {
            "index": 0,
            "message": to_wire(made.action.message, reasoning=True),
            "logprobs": self._listed(telling.logprobs(made)),
            "finish_reason": _finish_reason(made),
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": _usage(made)}

    async def events(
        self, making: asyncio.Future[TurnResult], telling: StreamWriter
    ) -> AsyncIterator[str]:
        """The ``chat.completion.chunk`` events as there is something to tell, ``[DONE]`` last.

        A turn that is given up once it has begun ends with an ``error`` event, without ``[DONE]``.
        """
        try:
            yield self._chunk({"role": "assistant", "content": ""})
            while not making.done():
                for delta in telling.deltas():
                    yield self._chunk(delta, telling.logprobs())
                await telling.wait(making)
            made = making.result()
        except Refusal as refusal:
            yield _event(refusal.body())
            return
        finally:
            making.cancel()  # the client is gone
        for delta in telling.rest(made):
            yield self._chunk(delta, telling.logprobs())
        yield self._chunk({}, telling.logprobs(made), _finish_reason(made))
        if self.request.stream_usage:
            yield _event(
                {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(made)}
            )
        yield "data: [DONE]\n\n"

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: Sequence[dict[str, Any]] = (),
        finish_reason: str | None = None,
    ) -> str:
        listed = self._listed(logprobs) if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": listed, "finish_reason": finish_reason}
        return _event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _listed(self, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": list(logprobs), "refusal": None} if self.request.logprobs else None

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
        }


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"  # in ASCII: some clients end a line at U+2028


def _finish_reason(made: TurnResult) -> str:
    return "tool_calls" if made.action.tool_calls else made.action.finish_reason


def _usage(made: TurnResult) -> dict[str, Any]:
    account = made.completion.account
    return {
        "prompt_tokens": account.prompt_tokens,
        "completion_tokens": account.completion_tokens,
        "total_tokens": account.prompt_tokens + account.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": made.completion.cached_tokens},
    }
