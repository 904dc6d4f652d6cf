"""Response request: the parser of OpenAI's Responses API, whose request becomes a ``ChatRequest``.

The shapes are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.agent_server.api.api_error import ApiError, bad_request
from agentrl.agent_server.api.chat_request import ChatRequest, request_of
from agentrl.agent_server.api.options import given_keys, listed, whole_number
from agentrl.llm import from_items, tool_from_item
from agentrl.types import Message

_TAKEN = frozenset(
    {"model", "input", "instructions", "previous_response_id", "tools", "max_output_tokens"}
    | {"include", "text", "stream", "stream_options", "tool_choice", "parallel_tool_calls"}
)
_LOGPROBS = "message.output_text.logprobs"
_ECHOED = frozenset(
    {"instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id"}
    | {"reasoning", "parallel_tool_calls", "temperature", "text", "tool_choice", "tools"}
    | {"top_p", "truncation", "user"}
)


@dataclass(frozen=True, slots=True, eq=False)
class ResponseRequest:
    """A request by way of the Responses API.

    Args:
        chat: the same request as a chat completion.
        thread: the conversation without ``instructions``, which hold for one response only.
        echoed: the keys that the response repeats.
    """

    chat: ChatRequest
    thread: tuple[Message, ...]
    echoed: Mapping[str, Any]


def parse_response_request(
    body: Mapping[str, Any], threads: Mapping[str, tuple[Message, ...]]
) -> ResponseRequest:
    """Parses the JSON of a request.

    Args:
        body: the JSON object.
        threads: the conversations up to earlier responses, by their ids.

    Raises:
        ApiError: 400, with the key, the rule and the value found.
        WireFault: an item or tool has none of OpenAI's forms.
    """
    given, ignored = given_keys(body, _TAKEN)
    text = given.get("text", {})
    if not isinstance(text, Mapping):
        raise bad_request(f"text must be an object, got {text!r}")
    if unknown := text.keys() - {"format", "verbosity"}:
        raise bad_request(f"text.{min(unknown)} is not supported here; leave it out")
    if text.get("verbosity") is not None:
        ignored["verbosity"] = text["verbosity"]
    include = listed(given, "include")
    if unserved := [name for name in include if name != _LOGPROBS]:
        ignored["include"] = unserved
    thread = _thread(given, threads)
    chat = request_of(
        given,
        parse_tool=tool_from_item,
        text_format=text.get("format"),
        messages=(*_instructions(given), *thread),
        max_tokens=whole_number("max_output_tokens", given.get("max_output_tokens")),
        ignored=ignored,
        logprobs=_LOGPROBS in include,
    )
    return ResponseRequest(chat, thread, {name: given[name] for name in given if name in _ECHOED})


def _thread(
    given: Mapping[str, Any], threads: Mapping[str, tuple[Message, ...]]
) -> tuple[Message, ...]:
    """The earlier conversation, if the request names one, and the request's input."""
    earlier: tuple[Message, ...] = ()
    if previous := given.get("previous_response_id"):
        if str(previous) not in threads:
            raise ApiError(
                400,
                "previous_response_not_found",
                f"previous_response_id={str(previous)!r} names no response of this episode; "
                "send the whole input",
            )
        earlier = threads[str(previous)]
    said = given.get("input", [])
    items = [{"role": "user", "content": said}] if isinstance(said, str) else listed(given, "input")
    thread = (*earlier, *from_items(items, "input"))
    if not thread or thread[-1]["role"] == "assistant":
        raise bad_request(
            "input must end with what the assistant is to answer, such as a message of the user"
        )
    return thread


def _instructions(given: Mapping[str, Any]) -> tuple[Message, ...]:
    text = given.get("instructions")
    if text is None:
        return ()
    if not isinstance(text, str):
        raise bad_request(f"instructions must be text, got {type(text).__name__}")
    return ({"role": "system", "content": text},)
