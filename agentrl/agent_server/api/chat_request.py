"""Chat request: a completion request of either API, and the parser of chat completions.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/create.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.agent_server.api.api_error import bad_request
from agentrl.agent_server.api.constraints import AnswerConstraints
from agentrl.agent_server.api.options import (
    SAMPLING,
    check_keys,
    constraints_of,
    flag,
    listed,
    number,
    whole_number,
)
from agentrl.llm import WireFault, from_wire, tool_from_wire
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
        stop: strings that end the completion.
        sampling: the client's ``temperature``, ``top_p`` and ``seed``.
        ignored: the client's other options, which have no effect here.
        logprobs: return each sampled token with its logprob.
        stream: answer with server-sent events.
        stream_usage: send the token counts in the stream too.
        model: the model's name in the request.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    constraints: AnswerConstraints = field(default_factory=AnswerConstraints)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    ignored: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    model: str = ""


def parse_request(body: Any) -> ChatRequest:
    """Parses the JSON of a chat completion.

    Raises:
        ApiError: 400, with the key, the rule and the value found.
    """
    given = given_keys(body)
    ignored = check_keys(given, _TAKEN)
    try:
        messages = tuple(
            from_wire(m, f"messages[{n}]") for n, m in enumerate(listed(given, "messages"))
        )
        tools = tools_of(given, tool_from_wire)
    except WireFault as fault:
        raise bad_request(str(fault)) from None
    if not messages or messages[-1]["role"] == "assistant":
        raise bad_request(
            "messages must end with one that the assistant is to answer, of role user, tool or "
            "system"
        )
    stop = given.get("stop", ())
    options = given.get("stream_options", {})
    limit = given.get("max_completion_tokens", given.get("max_tokens"))
    return request_of(
        given,
        messages=messages,
        tools=tools,
        text_format=given.get("response_format"),
        max_tokens=whole_number("max_tokens", limit),
        stop=_texts("stop", (stop,) if isinstance(stop, str) else tuple(stop)),
        ignored=ignored,
        logprobs=flag("logprobs", given.get("logprobs", False)),
        stream_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def given_keys(body: Any) -> dict[str, Any]:
    """A request's keys without its nulls, which mean the same as absent keys."""
    if not isinstance(body, Mapping):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return {name: value for name, value in body.items() if value is not None}


def request_of(
    given: Mapping[str, Any], *, tools: tuple[ToolSpec, ...], text_format: Any, **fields: Any
) -> ChatRequest:
    """The request, with the keys that both APIs share read from ``given``.

    Args:
        given: the request without its nulls.
        tools: the tools on offer.
        text_format: the format of the answer's text, in either API's form.
        fields: the other fields of ``ChatRequest``.
    """
    return ChatRequest(
        tools=tools,
        constraints=constraints_of(
            given.get("tool_choice"), given.get("parallel_tool_calls"), text_format, tools
        ),
        sampling={name: number(name, given[name]) for name in SAMPLING & given.keys()},
        stream=flag("stream", given.get("stream", False)),
        model=str(given.get("model", "")),
        **fields,
    )


def tools_of(
    given: Mapping[str, Any], parse: Callable[[Any, str], ToolSpec]
) -> tuple[ToolSpec, ...]:
    """The tools on offer; ``parse`` reads one of them."""
    return tuple(parse(tool, f"tools[{n}]") for n, tool in enumerate(listed(given, "tools")))


def _texts(name: str, values: tuple[Any, ...]) -> tuple[str, ...]:
    if not all(isinstance(value, str) and value for value in values):
        raise bad_request(f"{name} must be text or a list of texts, got {values!r}")
    return values
