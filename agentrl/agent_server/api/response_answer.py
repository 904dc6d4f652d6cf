"""A turn as the answer to a request of OpenAI's Responses API: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.agent_server.api.refusal import Refusal
from agentrl.agent_server.api.response_request import ResponseRequest
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import call_item, message_item, reasoning_item, text_part, to_items
from agentrl.rollouts.turns import TurnResult

__all__ = ["ResponseAnswer"]


@dataclass(frozen=True, slots=True)
class ResponseAnswer:
    """How the answer to one request is written.

    Args:
        request: what is answered.
        name: unique among the answers; the ids of the response and its items are made of it.
        created: seconds since the epoch.
    """

    request: ResponseRequest
    name: str
    created: int

    @property
    def response_id(self) -> str:
        """By which a later request goes on from here."""
        return f"resp_{self.name}"

    def body(self, made: TurnResult, telling: StreamWriter) -> dict[str, Any]:
        """The ``response`` object."""
        items = to_items(made.action.message, self.name)
        for item in items:
            if item["type"] == "message" and self.request.chat.logprobs:
                item["content"][0]["logprobs"] = telling.logprobs(made)
        return self._whole(made, items)

    async def events(
        self, making: asyncio.Future[TurnResult], telling: StreamWriter
    ) -> AsyncIterator[str]:
        """The events of https://platform.openai.com/docs/api-reference/responses-streaming as there is something to
        tell, ``response.completed`` or ``response.incomplete`` last.

        A turn that is given up once it has begun ends with an ``error`` event.
        """
        numbers = itertools.count()

        def event(kind: str, **body: Any) -> str:
            data = {"type": kind, "sequence_number": next(numbers), **body}
            return f"event: {kind}\ndata: {json.dumps(data)}\n\n"  # in ASCII: some clients end a line at U+2028

        items = _Items(self.name)
        try:
            for kind in ("response.created", "response.in_progress"):
                yield event(kind, response=self._head("in_progress"))
            while not making.done():
                for delta in telling.deltas():
                    for kind, body in items.add(delta):
                        yield event(kind, **body)
                await telling.wait(making)
            made = making.result()
        except Refusal as refusal:
            error = refusal.body()["error"]
            yield event("error", code=refusal.code, message=str(refusal), param=None, error=error)
            return
        finally:
            making.cancel()  # the client is gone
        for delta in telling.rest(made):
            for kind, body in items.add(delta):
                yield event(kind, **body)
        logprobs = telling.logprobs(made) if self.request.chat.logprobs else []
        for kind, body in items.end(logprobs):
            yield event(kind, **body)
        whole = self._whole(made, items.done)
        yield event(f"response.{whole['status']}", response=whole)

    def _whole(self, made: TurnResult, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = made.action.finish_reason == "length" and not made.action.tool_calls
        head = self._head("incomplete" if cut else "completed")
        if cut:
            head["incomplete_details"] = {"reason": "max_output_tokens"}
        return {**head, "output": items, "usage": _usage(made)}

    def _head(self, status: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.request.chat.model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "text": {"format": {"type": "text"}},
            "usage": None,
            **self.request.echoed,
        }


@dataclass(slots=True)
class _Items:
    """The items of a response while they are told.

    The message stays open to the end, since what is said may go on behind a call.
    """

    name: str
    done: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, int] = field(default_factory=dict)  # type of an item to its index

    def add(self, delta: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events that a delta of a chat completion is."""
        if text := delta.get("reasoning_content"):
            yield from self._text(
                "reasoning", reasoning_item(f"rs_{self.name}", ""), text, "response.reasoning_text"
            )
        if text := delta.get("content"):
            yield from self._text(
                "message", message_item(f"msg_{self.name}", ""), text, "response.output_text"
            )
        for call in delta.get("tool_calls", ()):
            yield from self._call(call_item(f"fc_{self.name}_{call['index']}", call))

    def end(self, logprobs: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events that close what is open; a response without any item gets an empty message."""
        if not self.done:
            yield from self._text(
                "message", message_item(f"msg_{self.name}", ""), "", "response.output_text"
            )
        for kind, index in self._open.items():
            item, part = self.done[index], self.done[index]["content"][0]
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            if kind == "message":
                part["logprobs"] = logprobs
                yield (
                    "response.output_text.done",
                    {**place, "text": part["text"], "logprobs": logprobs},
                )
            else:
                yield "response.reasoning_text.done", {**place, "text": part["text"]}
            yield "response.content_part.done", {**place, "part": part}
            yield "response.output_item.done", {"output_index": index, "item": item}

    def _text(
        self, kind: str, item: dict[str, Any], text: str, event: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if kind not in self._open:
            self._open[kind] = len(self.done)
            self.done.append(item)
            index = self._open[kind]
            yield (
                "response.output_item.added",
                {"output_index": index, "item": _begun(item, content=[])},
            )
            part = text_part("") if kind == "message" else {"type": "reasoning_text", "text": ""}
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            yield "response.content_part.added", {**place, "part": part}
        index = self._open[kind]
        item = self.done[index]
        item["content"][0]["text"] += text
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        if text:
            yield f"{event}.delta", {**place, "delta": text, **logprobs}

    def _call(self, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        index, arguments = len(self.done), item["arguments"]
        self.done.append(item)
        place = {"item_id": item["id"], "output_index": index}
        yield (
            "response.output_item.added",
            {"output_index": index, "item": _begun(item, arguments="")},
        )
        yield "response.function_call_arguments.delta", {**place, "delta": arguments}
        yield (
            "response.function_call_arguments.done",
            {**place, "arguments": arguments, "name": item["name"]},
        )
        yield "response.output_item.done", {"output_index": index, "item": item}


def _begun(item: Mapping[str, Any], **empty: Any) -> dict[str, Any]:
    return {**item, "status": "in_progress", **empty}


def _usage(made: TurnResult) -> dict[str, Any]:
    account = made.completion.account
    return {
        "input_tokens": account.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": made.completion.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": account.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": account.prompt_tokens + account.completion_tokens,
    }
