"""Chat completions: a request of OpenAI's first API, and its turn as a completion or as its chunks.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/api-reference/chat/streaming.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_server.api.dialect import Answer, Asked, sse_event
from agentrl.agent_server.api.request import (
    ChatRequest,
    flag,
    given_keys,
    listed,
    request_of,
    stop_strings,
    whole_number,
)
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import from_wire, to_wire, tool_from_wire
from agentrl.rollouts.turns import TurnResult

_TAKEN = frozenset(
    {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop"}
    | {"stream", "stream_options", "logprobs"}
    | {"tool_choice", "parallel_tool_calls", "response_format"}
)


class CompletionAnswer(Answer):
    """Writes the answer to one chat completion.

    A turn that fails after its stream has started ends with an error event, without ``[DONE]``.
    """

    path = "chat/completions"

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def _parse(self, asked: Asked) -> ChatRequest:
        given, ignored = given_keys(asked.body, _TAKEN, strict=asked.strict)
        messages = listed(given, "messages")
        stop = given.get("stop", [])
        options = given.get("stream_options", {})
        limit = given.get("max_completion_tokens", given.get("max_tokens"))
        return request_of(
            given,
            ignored,
            strict=asked.strict,
            parse_tool=tool_from_wire,
            text_format=given.get("response_format"),
            messages=[from_wire(m, f"messages[{n}]") for n, m in enumerate(messages)],
            max_tokens=whole_number("max_tokens", limit),
            stop=stop_strings("stop", [stop] if isinstance(stop, str) else stop),
            logprobs=flag(given, "logprobs"),
            stream_usage=isinstance(options, Mapping)
            and options.get("include_usage") is True,
        )

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
            yield sse_event(
                self._object("chat.completion.chunk", choices=[], usage=_usage(turn))
            )
        yield "data: [DONE]\n\n"

    def _chunk(
        self,
        delta: Mapping[str, Any],
        logprobs: Sequence[dict[str, Any]] = (),
        finish_reason: str | None = None,
    ) -> str:
        entries = self._logprobs(logprobs) if logprobs else None
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": entries,
            "finish_reason": finish_reason,
        }
        return sse_event(self._object("chat.completion.chunk", choices=[choice]))

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
