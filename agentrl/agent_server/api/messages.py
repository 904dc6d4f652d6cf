"""Messages: a request of Anthropic's Messages API, and its turn as a message or as its events.

The shapes are those of https://docs.anthropic.com/en/api/messages and
https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.agent_server.api.api_error import PolicyApiError, bad_request
from agentrl.agent_server.api.dialect import Answer, Asked, sse_event
from agentrl.agent_server.api.request import (
    ChatRequest,
    given_keys,
    listed,
    request_of,
    stop_strings,
    whole_number,
)
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.guards.secret_mask import beginning
from agentrl.llm import CONTEXT_EXCEEDED, from_blocks, to_blocks, tool_from_block
from agentrl.rollouts.turns import TurnResult

_VERSIONS = ("2023-06-01", "2026-10-21")
"""What is served here is the same in both."""
_TAKEN = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences"}
    | {"stream", "output_config", "output_format"}
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_DELTAS = {"thinking": "thinking_delta", "text": "text_delta"}


def _is_marked(value: Any) -> bool:
    """Whether any object of messages, tools or blocks has a ``cache_control``."""
    if isinstance(value, list):
        return any(map(_is_marked, value))
    if not isinstance(value, Mapping):
        return False
    return "cache_control" in value or _is_marked(value.get("content"))


def _choice(value: Any) -> dict[str, Any]:
    """``tool_choice`` as OpenAI has it."""
    match value:
        case None:
            return {}
        case {"type": "auto" | "any" | "none" as kind}:
            choice: Any = _CHOICES[kind]
        case {"type": "tool", "name": str(name)}:
            choice = {"type": "function", "name": name}
        case _:
            raise bad_request(
                "tool_choice must be of type auto, any, none, or tool with a name, got "
                f"{beginning(str(value), 100)}"
            )
    several = not value.get("disable_parallel_tool_use")
    return {"tool_choice": choice, "parallel_tool_calls": several}


class MessageAnswer(Answer):
    """Writes the answer to one request: a block each for thoughts, text and calls.

    Streamed blocks follow one another, so text that goes on behind a call is a block of its own.
    """

    path = "messages"

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._id = f"msg_{uuid.uuid4().hex}"
        self._num_blocks = 0
        # the type of the streamed block that may go on
        self._open = ""

    def _parse(self, asked: Asked) -> ChatRequest:
        version = asked.headers.get("anthropic-version", _VERSIONS[0])
        if version not in _VERSIONS:
            raise bad_request(
                f"anthropic-version must be {' or '.join(_VERSIONS)}, got "
                f"{beginning(version, 40)!r}; send one of them"
            )
        given, ignored = given_keys(asked.body, _TAKEN, strict=asked.strict)
        config = given.get("output_config", {})
        if not isinstance(config, Mapping):
            raise bad_request(f"output_config must be an object, got {config!r}")
        ignored |= given_keys(config, frozenset({"format"}), strict=asked.strict)[1]
        if beta := asked.headers.get("anthropic-beta"):
            ignored["anthropic-beta"] = beta
        messages = listed(given, "messages")
        if _is_marked([*messages, *listed(given, "tools"), given.get("system")]):
            ignored["cache_control"] = True
        return request_of(
            {**given, **_choice(given.get("tool_choice"))},
            ignored,
            strict=asked.strict,
            parse_tool=tool_from_block,
            types=frozenset({"custom", "function"}),
            text_format=config.get("format", given.get("output_format")),
            messages=from_blocks(given.get("system"), messages),
            max_tokens=whole_number("max_tokens", given.get("max_tokens")),
            stop=stop_strings("stop_sequences", given.get("stop_sequences", [])),
            logprobs=False,
        )

    @staticmethod
    def error_body(error: PolicyApiError) -> dict[str, Any]:
        """An error in Anthropic's shape."""
        kind = "api_error" if error.status >= 500 else "invalid_request_error"
        # by these words programs know that they are to shorten the conversation
        too_long = "prompt is too long: " if error.code == CONTEXT_EXCEEDED else ""
        return {
            "type": "error",
            "error": {
                "type": _ERRORS.get(error.status, kind),
                "message": f"{too_long}{error}",
            },
        }

    def body(self, turn: TurnResult, stream: StreamWriter) -> dict[str, Any]:
        """The whole answer: the ``message`` object."""
        return {
            **self._head(to_blocks(turn.action.message)),
            **_end(turn),
            "usage": _usage(turn),
        }

    def opening(self) -> Iterator[str]:
        """The events before the first token."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        yield sse_event(
            {"type": "message_start", "message": {**self._head([]), "usage": usage}}
        )

    def delta(self, delta: Mapping[str, Any], stream: StreamWriter) -> Iterator[str]:
        """The events of a delta in the shape of chat completions."""
        if text := delta.get("reasoning_content"):
            yield from self._text("thinking", text)
        if text := delta.get("content"):
            yield from self._text("text", text)
        for call in delta.get("tool_calls", ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield from self._close()
            yield self._start(
                {"type": "tool_use", "id": call["id"], "name": name, "input": {}}
            )
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})
            yield from self._close()

    def closing(self, turn: TurnResult, stream: StreamWriter) -> Iterator[str]:
        """The events after the last delta."""
        yield from self._close()
        yield sse_event(
            {"type": "message_delta", "delta": _end(turn), "usage": _usage(turn)}
        )
        yield sse_event({"type": "message_stop"})

    def _text(self, kind: str, text: str) -> Iterator[str]:
        if self._open != kind:
            yield from self._close()
            signature = {"signature": ""} if kind == "thinking" else {}
            yield self._start({"type": kind, kind: "", **signature})
        yield self._delta({"type": _DELTAS[kind], kind: text})

    def _start(self, block: dict[str, Any]) -> str:
        self._open = block["type"]
        index = self._num_blocks
        self._num_blocks += 1
        return sse_event(
            {"type": "content_block_start", "index": index, "content_block": block}
        )

    def _delta(self, delta: dict[str, Any]) -> str:
        index = self._num_blocks - 1
        return sse_event({"type": "content_block_delta", "index": index, "delta": delta})

    def _close(self) -> Iterator[str]:
        if self._open:
            self._open = ""
            yield sse_event({"type": "content_block_stop", "index": self._num_blocks - 1})

    def _head(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.chat.model,
            "content": blocks,
            "stop_reason": None,
            "stop_sequence": None,
        }


def _end(turn: TurnResult) -> dict[str, Any]:
    stopped_by = turn.completion.stop_string
    reason = "stop_sequence" if stopped_by is not None else "end_turn"
    if turn.action.finish_reason == "length":
        reason = "max_tokens"
    elif turn.action.tool_calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": stopped_by}


def _usage(turn: TurnResult) -> dict[str, Any]:
    cached = turn.completion.cached_tokens
    return {
        "input_tokens": turn.completion.usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": turn.completion.usage.completion_tokens,
    }
