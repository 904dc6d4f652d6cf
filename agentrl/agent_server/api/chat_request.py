"""A completion as it is asked for, whichever API it came by, and chat completions read as one.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.agent_server.api.demands import Demands
from agentrl.agent_server.api.options import (
    SAMPLING,
    check_keys,
    demands_of,
    flag,
    listed,
    number,
    whole_number,
)
from agentrl.agent_server.api.refusal import Refusal, bad_request
from agentrl.llm import WireFault, from_wire, tool_from_wire
from agentrl.types import Message, ToolSpec

__all__ = ["ChatRequest", "Refusal", "given_keys", "parse_request", "sampling_of"]

_TAKEN = frozenset(
    {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop"}
    | {
        "stream",
        "stream_options",
        "logprobs",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class ChatRequest:
    """What a client asks for.

    Args:
        messages: the conversation, which ends with what is to be answered.
        tools: on offer.
        demands: of the answer.
        max_tokens: at most so many are sampled; None leaves it to the limits.
        stop: strings that end the completion.
        sampling: what the client would have liked of ``temperature``, ``top_p`` and ``seed``.
        ignored: what else it asked for, which changes nothing here.
        logprobs: name each sampled token with its logprob.
        stream: answer in server-sent events.
        stream_usage: send the token counts there too.
        model: the name that the client used.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    demands: Demands = field(default_factory=Demands)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    ignored: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    model: str = ""


def parse_request(body: Any) -> ChatRequest:
    """Reads the JSON of a chat completion.

    Raises:
        Refusal: 400, with the key, the rule and the value found.
    """
    given = given_keys(body)
    ignored = check_keys(given, _TAKEN)
    try:
        messages = tuple(
            from_wire(m, f"messages[{n}]") for n, m in enumerate(listed(given, "messages"))
        )
        tools = tuple(
            tool_from_wire(tool, f"tools[{n}]") for n, tool in enumerate(listed(given, "tools"))
        )
    except WireFault as fault:
        raise bad_request(str(fault)) from None
    if not messages or messages[-1]["role"] == "assistant":
        raise bad_request(
            "messages must end with one that the assistant is to answer, of role user, tool or system"
        )
    stop = given.get("stop", ())
    options = given.get("stream_options", {})
    return ChatRequest(
        messages=messages,
        tools=tools,
        demands=demands_of(
            given.get("tool_choice"),
            given.get("parallel_tool_calls"),
            given.get("response_format"),
            tools,
        ),
        max_tokens=whole_number(
            "max_tokens", given.get("max_completion_tokens", given.get("max_tokens"))
        ),
        stop=_texts("stop", (stop,) if isinstance(stop, str) else tuple(stop)),
        sampling=sampling_of(given),
        ignored=ignored,
        logprobs=flag("logprobs", given.get("logprobs", False)),
        stream=flag("stream", given.get("stream", False)),
        stream_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        model=str(given.get("model", "")),
    )


def given_keys(body: Any) -> dict[str, Any]:
    """A request's keys without its nulls, which say the same as leaving them out."""
    if not isinstance(body, Mapping):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return {name: value for name, value in body.items() if value is not None}


def sampling_of(given: Mapping[str, Any]) -> dict[str, float]:
    """How the client would have its tokens drawn."""
    return {name: number(name, given[name]) for name in SAMPLING & given.keys()}


def _texts(name: str, values: tuple[Any, ...]) -> tuple[str, ...]:
    if not all(isinstance(value, str) and value for value in values):
        raise bad_request(f"{name} must be text or a list of texts, got {values!r}")
    return values
