"""A request of OpenAI's Responses API, read as the same request that a chat completion is.

The shapes are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.agent_server.api.chat_request import ChatRequest, given_keys, sampling_of
from agentrl.agent_server.api.options import check_keys, demands_of, flag, listed, whole_number
from agentrl.agent_server.api.refusal import bad_request
from agentrl.llm import WireFault, from_items, tool_from_item
from agentrl.types import Message

__all__ = ["ResponseRequest", "parse_response_request"]

_TAKEN = frozenset(
    {
        "model",
        "input",
        "instructions",
        "previous_response_id",
        "tools",
        "max_output_tokens",
        "include",
        "text",
    }
    | {"stream", "stream_options", "tool_choice", "parallel_tool_calls"}
)
_LOGPROBS = "message.output_text.logprobs"
_ECHOED = (
    *(
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "previous_response_id",
        "reasoning",
    ),
    *(
        "parallel_tool_calls",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
        "truncation",
        "user",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class ResponseRequest:
    """What a client asks for by way of Responses.

    Args:
        chat: the same as a chat completion.
        thread: the conversation without ``instructions``, which hold for one response and are not carried on.
        echoed: the keys that the response repeats.
    """

    chat: ChatRequest
    thread: tuple[Message, ...]
    echoed: Mapping[str, Any]


def parse_response_request(
    body: Any, thread_of: Callable[[str], tuple[Message, ...]]
) -> ResponseRequest:
    """Reads the JSON of a request.

    Args:
        body: as it came.
        thread_of: the conversation that a response ended, by its id; raises Refusal where there is none.

    Raises:
        Refusal: 400, with the key, the rule and the value found.
    """
    given = given_keys(body)
    ignored = check_keys(given, _TAKEN)
    before = given.get("previous_response_id")
    said = given.get("input", [])
    items = [{"role": "user", "content": said}] if isinstance(said, str) else listed(given, "input")
    text = given.get("text", {})
    if not isinstance(text, Mapping):
        raise bad_request(f"text must be an object, got {text!r}")
    if unknown := text.keys() - {"format", "verbosity"}:
        raise bad_request(f"text.{min(unknown)} is not supported here; leave it out")
    try:
        thread = (*(thread_of(str(before)) if before else ()), *from_items(items, "input"))
        tools = tuple(
            tool_from_item(tool, f"tools[{n}]") for n, tool in enumerate(listed(given, "tools"))
        )
    except WireFault as fault:
        raise bad_request(str(fault)) from None
    if not thread or thread[-1]["role"] == "assistant":
        raise bad_request(
            "input must end with what the assistant is to answer, such as a message of the user"
        )
    if text.get("verbosity") is not None:
        ignored["verbosity"] = text["verbosity"]
    include = listed(given, "include")
    if further := [name for name in include if name != _LOGPROBS]:
        ignored["include"] = further
    chat = ChatRequest(
        messages=(*_instructions(given), *thread),
        tools=tools,
        demands=demands_of(
            given.get("tool_choice"), given.get("parallel_tool_calls"), text.get("format"), tools
        ),
        max_tokens=whole_number("max_output_tokens", given.get("max_output_tokens")),
        sampling=sampling_of(given),
        ignored=ignored,
        logprobs=_LOGPROBS in include,
        stream=flag("stream", given.get("stream", False)),
        model=str(given.get("model", "")),
    )
    return ResponseRequest(chat, thread, {name: given[name] for name in _ECHOED if name in given})


def _instructions(given: Mapping[str, Any]) -> tuple[Message, ...]:
    text = given.get("instructions")
    if text is None:
        return ()
    if not isinstance(text, str):
        raise bad_request(f"instructions must be text, got {type(text).__name__}")
    return ({"role": "system", "content": text},)
