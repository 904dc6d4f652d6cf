"""Responses: a request of OpenAI's Responses API, and its turn as a response or as its events.

The shapes are those of https://platform.openai.com/docs/api-reference/responses/create and
https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import itertools
import time
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
    whole_number,
)
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import (
    call_item,
    from_items,
    message_item,
    reasoning_item,
    to_items,
    tool_from_item,
)
from agentrl.rollouts.turns import TurnResult
from agentrl.types import Message

_TAKEN = frozenset(
    {"model", "input", "instructions", "previous_response_id", "tools", "max_output_tokens"}
    | {"include", "text", "stream", "stream_options", "tool_choice", "parallel_tool_calls"}
)
_LOGPROBS = "message.output_text.logprobs"
_ECHOED = frozenset(
    {
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "previous_response_id",
    }
    | {"reasoning", "parallel_tool_calls", "temperature", "text", "tool_choice", "tools"}
    | {"top_p", "truncation", "user"}
)


def _thread(
    given: Mapping[str, Any], threads: Mapping[str, tuple[Message, ...]]
) -> tuple[Message, ...]:
    """The earlier conversation, if the request names one, and the request's input."""
    earlier: tuple[Message, ...] = ()
    if previous := given.get("previous_response_id"):
        if str(previous) not in threads:
            raise PolicyApiError(
                400,
                "previous_response_not_found",
                f"previous_response_id={str(previous)!r} names no response of this episode; "
                "send the whole input",
            )
        earlier = threads[str(previous)]
    said = given.get("input", [])
    items = (
        [{"role": "user", "content": said}]
        if isinstance(said, str)
        else listed(given, "input")
    )
    return (*earlier, *from_items(items, "input"))


def _instructions(given: Mapping[str, Any]) -> tuple[Message, ...]:
    text = given.get("instructions")
    if text is None:
        return ()
    if not isinstance(text, str):
        raise bad_request(f"instructions must be text, got {type(text).__name__}")
    return ({"role": "system", "content": text},)


_TEXTS = {
    "reasoning": ("rs", reasoning_item, "response.reasoning_text"),
    "message": ("msg", message_item, "response.output_text"),
}
"""An item of text by its type: the beginning of its id, what makes it, and its events' type."""


class ResponseAnswer(Answer):
    """Writes the answer to one request.

    The last event is ``response.completed`` or ``response.incomplete``. A turn that fails after its
    stream has started ends with an ``error`` event. A streamed message stays open to the end,
    because its text may continue after a call.

    Attributes:
        id: of the response.
        thread: the conversation without ``instructions``, which hold for one response only.
    """

    path = "responses"

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        # the ids of the response and its items contain it
        self._name = uuid.uuid4().hex
        self.id = f"resp_{self._name}"
        self._created = int(time.time())
        echoed = asked.body.keys() & _ECHOED
        self._echoed = {
            name: asked.body[name] for name in echoed if asked.body[name] is not None
        }
        self._numbers = itertools.count()
        # The streamed items so far, and the index of each whose text may go on, by its type.
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, int] = {}

    def _parse(self, asked: Asked) -> ChatRequest:
        given, ignored = given_keys(asked.body, _TAKEN, strict=asked.strict)
        text = given.get("text", {})
        if not isinstance(text, Mapping):
            raise bad_request(f"text must be an object, got {text!r}")
        ignored |= given_keys(text, frozenset({"format"}), strict=asked.strict)[1]
        include = listed(given, "include")
        if unserved := [name for name in include if name != _LOGPROBS]:
            ignored["include"] = unserved
        self.thread = _thread(given, asked.threads)
        return request_of(
            given,
            ignored,
            strict=asked.strict,
            parse_tool=tool_from_item,
            text_format=text.get("format"),
            messages=(*_instructions(given), *self.thread),
            max_tokens=whole_number("max_output_tokens", given.get("max_output_tokens")),
            logprobs=_LOGPROBS in include,
        )

    def record(self, turn: TurnResult) -> None:
        """Keeps the conversation that this response ends, without instructions."""
        self.asked.threads[self.id] = (*self.thread, turn.action.message)

    def body(self, turn: TurnResult, stream: StreamWriter) -> dict[str, Any]:
        """The whole answer: the ``response`` object."""
        items = to_items(turn.action.message, self._name)
        for item in items:
            if item["type"] == "message":
                item["content"][0]["logprobs"] = stream.logprobs(turn)
        return self._response(turn, items)

    def opening(self) -> Iterator[str]:
        """The events before the first token."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._head("in_progress"))

    def delta(self, delta: Mapping[str, Any], stream: StreamWriter) -> Iterator[str]:
        """The events of a delta in the shape of chat completions."""
        if text := delta.get("reasoning_content"):
            yield from self._text("reasoning", text)
        if text := delta.get("content"):
            yield from self._text("message", text, logprobs=[])
        for call in delta.get("tool_calls", ()):
            yield from self._call(call_item(f"fc_{self._name}_{call['index']}", call))

    def closing(self, turn: TurnResult, stream: StreamWriter) -> Iterator[str]:
        """The events after the last delta; a response without items gets an empty message."""
        if not self._items:
            yield from self._text("message", "")
        for kind, index in self._open.items():
            item = self._items[index]
            part = item["content"][0]
            done = {**self._place(index), "content_index": 0}
            said = {"text": part["text"]}
            if kind == "message":
                part["logprobs"] = said["logprobs"] = stream.logprobs(turn)
            yield self._event(f"{_TEXTS[kind][2]}.done", **done, **said)
            yield self._event("response.content_part.done", **done, part=part)
            yield self._event("response.output_item.done", output_index=index, item=item)
        response = self._response(turn, self._items)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: PolicyApiError) -> str:
        """The event that ends a turn which failed after its stream had started."""
        return self._event(
            "error",
            code=error.code,
            message=str(error),
            param=None,
            **self.error_body(error),
        )

    def _text(self, kind: str, text: str, **more: Any) -> Iterator[str]:
        name, make_item, event = _TEXTS[kind]
        index = self._open.setdefault(kind, len(self._items))
        if index == len(self._items):
            yield self._added(make_item(f"{name}_{self._name}", ""), content=[])
            empty = self._items[index]["content"][0]
            yield self._event(
                "response.content_part.added",
                **self._place(index),
                content_index=0,
                part=empty,
            )
        self._items[index]["content"][0]["text"] += text
        if text:
            yield self._event(
                f"{event}.delta", **self._place(index), content_index=0, delta=text, **more
            )

    def _call(self, item: dict[str, Any]) -> Iterator[str]:
        index = len(self._items)
        arguments = item["arguments"]
        event = "response.function_call_arguments"
        yield self._added(item, arguments="")
        yield self._event(f"{event}.delta", **self._place(index), delta=arguments)
        yield self._event(
            f"{event}.done", **self._place(index), arguments=arguments, name=item["name"]
        )
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _added(self, item: dict[str, Any], **empty: Any) -> str:
        """Adds an item, which is streamed from its beginning."""
        self._items.append(item)
        return self._event(
            "response.output_item.added",
            output_index=len(self._items) - 1,
            item={**item, "status": "in_progress", **empty},
        )

    def _place(self, index: int) -> dict[str, Any]:
        return {"item_id": self._items[index]["id"], "output_index": index}

    def _event(self, kind: str, **body: Any) -> str:
        return sse_event({"type": kind, "sequence_number": next(self._numbers), **body})

    def _response(self, turn: TurnResult, items: list[dict[str, Any]]) -> dict[str, Any]:
        incomplete = turn.action.finish_reason == "length"
        head = self._head("incomplete" if incomplete else "completed")
        if incomplete:
            head["incomplete_details"] = {"reason": "max_output_tokens"}
        return {**head, "output": items, "usage": _usage(turn)}

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.chat.model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "text": {"format": {"type": "text"}},
            "usage": None,
            **self._echoed,
        }


def _usage(turn: TurnResult) -> dict[str, Any]:
    usage = turn.completion.usage
    cached = turn.completion.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
