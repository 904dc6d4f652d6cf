"""Chat answer: a turn as a chat completion, or as its chunks.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/streaming.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_server.api.api_error import PolicyApiError
from agentrl.agent_server.api.chat_request import parse_request
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import to_wire
from agentrl.rollouts.turns import TurnResult


class CompletionAnswer:
    """Writes the answer to one chat completion.

    A turn that fails after its stream has started ends with an error event, without ``[DONE]``.

    Args:
        body: the request's JSON object.
        _: the conversations of the Responses API, which this one does not name.

    Attributes:
        chat: the request.

    Raises:
        PolicyApiError, WireFault: see ``parse_request``.
    """

    def __init__(self, body: Mapping[str, Any], _: object) -> None:
        self.chat = parse_request(body)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def body(self, turn: TurnResult, stream: StreamWriter) -> dict[str, Any]:
        """The whole answer: the ``chat.completion`` object."""
        choice = {
            "index": 0,
            "message": to_wire(turn.action.message, reasoning=True),
            "logprobs": self._logprobs(stream.logprobs(turn)),
            "finish_reason": _finish_reason(turn),
        }
        return self._object("chat.completion", choices=[choice], usage=_usage(turn))

    def opening(self) -> Iterator[str]:
        """The events before the first token."""
        yield self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: Mapping[str, Any], stream: StreamWriter) -> Iterator[str]:
        """The events of a delta."""
        yield self._chunk(delta, stream.logprobs())

    def closing(self, turn: TurnResult, stream: StreamWriter) -> Iterator[str]:
        """The events after the last delta."""
        yield self._chunk({}, stream.logprobs(turn), _finish_reason(turn))
        if self.chat.stream_usage:
            yield _event(self._object("chat.completion.chunk", choices=[], usage=_usage(turn)))
        yield "data: [DONE]\n\n"

    def failure(self, error: PolicyApiError) -> str:
        """The event that ends a turn which failed after its stream had started."""
        return _event(error.body())

    def _chunk(
        self,
        delta: Mapping[str, Any],
        logprobs: Sequence[dict[str, Any]] = (),
        finish_reason: str | None = None,
    ) -> str:
        listed = self._logprobs(logprobs) if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": listed, "finish_reason": finish_reason}
        return _event(self._object("chat.completion.chunk", choices=[choice]))

    def _logprobs(self, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": list(logprobs), "refusal": None} if self.chat.logprobs else None

    def _object(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.chat.model,
            **fields,
        }


def _event(body: dict[str, Any]) -> str:
    # in ASCII: some clients end a line at U+2028
    return f"data: {json.dumps(body)}\n\n"


def _finish_reason(turn: TurnResult) -> str:
    # also behind a whole call
    cut = turn.action.finish_reason == "length"
    return "tool_calls" if turn.action.tool_calls and not cut else turn.action.finish_reason


def _usage(turn: TurnResult) -> dict[str, Any]:
    usage = turn.completion.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.completion.cached_tokens},
    }
