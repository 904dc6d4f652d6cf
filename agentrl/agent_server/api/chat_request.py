"""Chat request: a completion request of either API, and the parser of chat completions.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/create.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.agent_server.api.api_error import bad_request
from agentrl.agent_server.api.constraints import AnswerConstraints
from agentrl.agent_server.api.options import (
    SAMPLING,
    constraints_of,
    flag,
    given_keys,
    listed,
    number,
    whole_number,
)
from agentrl.llm import from_wire, tool_from_wire
from agentrl.types import Message, ToolSpec

_TAKEN = frozenset(
    {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop"}
    | {"stream", "stream_options", "logprobs"}
    | {"tool_choice", "parallel_tool_calls", "response_format"}
)


@dataclass(frozen=True, slots=True, eq=False)
class ChatRequest:
    """A request for one completion.

    Args:
        messages: the conversation, which ends with the message to answer.
        tools: the tools on offer.
        constraints: the constraints of the answer.
        max_tokens: the most tokens to sample; None leaves it to the limits.
        sampling: the client's ``temperature``, ``top_p`` and ``seed``.
        ignored: the client's other options, which have no effect here.
        logprobs: return each sampled token with its logprob.
        stream: answer with server-sent events.
        model: the model's name in the request.
        stop: strings that end the completion.
        stream_usage: send the token counts in the stream too.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    constraints: AnswerConstraints
    max_tokens: int | None
    sampling: Mapping[str, float]
    ignored: Mapping[str, Any]
    logprobs: bool
    stream: bool
    model: str
    stop: tuple[str, ...] = ()
    stream_usage: bool = False


def parse_request(body: Mapping[str, Any]) -> ChatRequest:
    """Parses the JSON of a chat completion.

    Raises:
        ApiError: 400, with the key, the rule and the value found.
        WireFault: a message or tool has none of OpenAI's forms.
    """
    given, ignored = given_keys(body, _TAKEN)
    messages = tuple(
        from_wire(m, f"messages[{n}]") for n, m in enumerate(listed(given, "messages"))
    )
    if not messages or messages[-1]["role"] == "assistant":
        raise bad_request(
            "messages must end with one that the assistant is to answer, of role user, tool or "
            "system"
        )
    stop = given.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise bad_request(f"stop must be text or a list of texts, got {stop!r}")
    options = given.get("stream_options", {})
    limit = given.get("max_completion_tokens", given.get("max_tokens"))
    return request_of(
        given,
        parse_tool=tool_from_wire,
        text_format=given.get("response_format"),
        messages=messages,
        max_tokens=whole_number("max_tokens", limit),
        stop=tuple(stops),
        ignored=ignored,
        logprobs=flag(given, "logprobs"),
        stream_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def request_of(
    given: Mapping[str, Any],
    *,
    parse_tool: Callable[[Any, str], ToolSpec],
    text_format: Any,
    **fields: Any,
) -> ChatRequest:
    """The request, with the keys that both APIs share read from ``given``.

    Args:
        given: the request without its nulls.
        parse_tool: parses a tool on offer, in either API's form.
        text_format: the format of the answer's text, in either API's form.
        fields: the other fields of ``ChatRequest``.
    """
    tools = tuple(parse_tool(tool, f"tools[{n}]") for n, tool in enumerate(listed(given, "tools")))
    return ChatRequest(
        tools=tools,
        constraints=constraints_of(given, text_format, tools),
        sampling={name: number(name, given[name]) for name in SAMPLING & given.keys()},
        stream=flag(given, "stream"),
        model=str(given.get("model", "")),
        **fields,
    )
