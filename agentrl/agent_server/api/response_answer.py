"""Response answer: a turn as a response of OpenAI's Responses API, or as its events.

The shapes are those of https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.agent_server.api.api_error import ApiError
from agentrl.agent_server.api.response_request import ResponseRequest
from agentrl.agent_server.response_threads import ResponseThreads
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import call_item, message_item, reasoning_item, text_part, to_items
from agentrl.rollouts.turns import TurnResult

_Event = tuple[str, dict[str, Any]]
"""The type of an event and its body."""


class ResponseAnswer:
    """Writes the answer to one request.

    The last event is ``response.completed`` or ``response.incomplete``. A turn that fails after its
    stream has started ends with an ``error`` event.

    Args:
        request: the request.
        name: unique among the answers; the ids of the response and its items contain it.
        created: seconds since the epoch.
    """

    def __init__(self, request: ResponseRequest, name: str, created: int) -> None:
        self.chat = request.chat
        self._request = request
        self._name = name
        self._created = created
        self._items = _StreamedItems(name)
        self._numbers = itertools.count()

    @property
    def response_id(self) -> str:
        """The id by which a later request continues from here."""
        return f"resp_{self._name}"

    def record(self, threads: ResponseThreads, turn: TurnResult) -> None:
        """Adds the conversation that this response ends."""
        threads.add(self.response_id, (*self._request.thread, turn.action.message))

    def body(self, turn: TurnResult, stream: StreamWriter) -> dict[str, Any]:
        """The whole answer: the ``response`` object."""
        items = to_items(turn.action.message, self._name)
        for item in items:
            if item["type"] == "message" and self.chat.logprobs:
                item["content"][0]["logprobs"] = stream.logprobs(turn)
        return self._response(turn, items)

    def opening(self) -> Iterator[str]:
        """The events before the first token."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._head("in_progress"))

    def delta(self, delta: Mapping[str, Any], stream: StreamWriter) -> Iterator[str]:
        """The events of a delta in the shape of chat completions."""
        return self._events(self._items.add(delta))

    def closing(self, turn: TurnResult, stream: StreamWriter) -> Iterator[str]:
        """The events after the last delta."""
        logprobs = stream.logprobs(turn) if self.chat.logprobs else []
        yield from self._events(self._items.close(logprobs))
        response = self._response(turn, self._items.items)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ApiError) -> str:
        """The event that ends a turn which failed after its stream had started."""
        return self._event(
            "error", code=error.code, message=str(error), param=None, error=error.body()["error"]
        )

    def _events(self, events: Iterable[_Event]) -> Iterator[str]:
        for kind, body in events:
            yield self._event(kind, **body)

    def _event(self, kind: str, **body: Any) -> str:
        data = {"type": kind, "sequence_number": next(self._numbers), **body}
        # in ASCII: some clients end a line at U+2028
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n"

    def _response(self, turn: TurnResult, items: list[dict[str, Any]]) -> dict[str, Any]:
        incomplete = turn.action.finish_reason == "length" and not turn.action.tool_calls
        head = self._head("incomplete" if incomplete else "completed")
        if incomplete:
            head["incomplete_details"] = {"reason": "max_output_tokens"}
        return {**head, "output": items, "usage": _usage(turn)}

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
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
            **self._request.echoed,
        }


@dataclass(slots=True)
class _StreamedItems:
    """The items of a response while they are streamed.

    The message stays open to the end, because its text may continue after a call.
    """

    name: str
    items: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, int] = field(default_factory=dict)  # an item's type to its index

    def add(self, delta: Mapping[str, Any]) -> Iterator[_Event]:
        """The events of a delta in the shape of chat completions."""
        if text := delta.get("reasoning_content"):
            yield from self._reasoning(text)
        if text := delta.get("content"):
            yield from self._message(text)
        for call in delta.get("tool_calls", ()):
            yield from self._call(call_item(f"fc_{self.name}_{call['index']}", call))

    def close(self, logprobs: list[dict[str, Any]]) -> Iterator[_Event]:
        """The events that close the open items; a response without items gets an empty message."""
        if not self.items:
            yield from self._message("")
        for kind, index in self._open.items():
            item = self.items[index]
            part = item["content"][0]
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            done: dict[str, Any] = {**place, "text": part["text"]}
            if kind == "message":
                part["logprobs"] = done["logprobs"] = logprobs
                yield "response.output_text.done", done
            else:
                yield "response.reasoning_text.done", done
            yield "response.content_part.done", {**place, "part": part}
            yield "response.output_item.done", {"output_index": index, "item": item}

    def _reasoning(self, text: str) -> Iterator[_Event]:
        item = reasoning_item(f"rs_{self.name}", "")
        empty_part = {"type": "reasoning_text", "text": ""}
        yield from self._text(item, empty_part, text, "response.reasoning_text.delta")

    def _message(self, text: str) -> Iterator[_Event]:
        item = message_item(f"msg_{self.name}", "")
        event = "response.output_text.delta"
        yield from self._text(item, text_part(""), text, event, logprobs=[])

    def _text(
        self, item: dict[str, Any], empty_part: dict[str, Any], text: str, event: str, **more: Any
    ) -> Iterator[_Event]:
        index = self._open.setdefault(item["type"], len(self.items))
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        if index == len(self.items):
            self.items.append(item)
            yield _item_added(index, item, content=[])
            yield "response.content_part.added", {**place, "part": empty_part}
        self.items[index]["content"][0]["text"] += text
        if text:
            yield event, {**place, "delta": text, **more}

    def _call(self, item: dict[str, Any]) -> Iterator[_Event]:
        index = len(self.items)
        arguments = item["arguments"]
        self.items.append(item)
        place = {"item_id": item["id"], "output_index": index}
        event = "response.function_call_arguments"
        yield _item_added(index, item, arguments="")
        yield f"{event}.delta", {**place, "delta": arguments}
        yield f"{event}.done", {**place, "arguments": arguments, "name": item["name"]}
        yield "response.output_item.done", {"output_index": index, "item": item}


def _item_added(index: int, item: Mapping[str, Any], **empty: Any) -> _Event:
    added = {**item, "status": "in_progress", **empty}
    return "response.output_item.added", {"output_index": index, "item": added}


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
