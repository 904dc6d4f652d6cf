"""Chat request: a completion request, and the keys that both APIs share.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/create.

- A key is refused by name if it would change the sampled tokens, or if its effect would be missing
  in the answer.
- A key without either effect is noted in the turn (``Turn.info["ignored"]``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.agent_server.api.api_error import bad_request
from agentrl.agent_server.api.constraints import AnswerConstraints, schema_text
from agentrl.llm import from_wire, tool_from_wire
from agentrl.types import Message, ToolSpec

SAMPLING = frozenset({"temperature", "top_p", "seed"})
_OF_NO_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier"}
    | {"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}
)
_NOTED = frozenset(
    {"reasoning_effort", "verbosity", "prediction", "reasoning", "truncation", "max_tool_calls"}
)
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "background": (False,),
}


def given_keys(
    body: Mapping[str, Any], taken: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refuses unsupported keys.

    Args:
        body: the request.
        taken: the keys that the caller parses.

    Returns:
        The request without its nulls, which mean the same as absent keys; and the ignored keys that
        are noted in the turn, with their values.

    Raises:
        PolicyApiError: 400, with the key, the rule and the value found.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in _ONLY:
            if value not in _ONLY[name]:
                raise bad_request(
                    f"{name} must be {_ONLY[name][0]!r} here or be left out, got {value!r}"
                )
        elif name not in taken | SAMPLING | _OF_NO_EFFECT | _NOTED:
            raise bad_request(f"{name} is not supported here, got {value!r}; leave it out")
    return given, {name: given[name] for name in given if name in _NOTED}


def constraints_of(
    given: Mapping[str, Any], text: Any, tools: Sequence[ToolSpec]
) -> AnswerConstraints:
    """The client's constraints of the answer.

    Args:
        given: the request without its nulls.
        text: ``response_format``, or the ``format`` of Responses' ``text``.
        tools: the tools on offer.

    Raises:
        PolicyApiError: a form that OpenAI does not define, or that no function tool can satisfy.
    """
    choice = given.get("tool_choice", "auto")
    calls, allowed = _choice(choice)
    names = [tool.name for tool in tools]
    if unknown := [name for name in allowed if name not in names]:
        raise bad_request(
            f"tool_choice names {unknown[0]!r}, and tools has {', '.join(names) or 'none'}; offer "
            f"it"
        )
    if calls == "required" and not tools:
        raise bad_request(
            f"tool_choice={choice!r} needs tools, got none; offer some or leave it out"
        )
    schema, description = _format(text)
    if not tools:
        return AnswerConstraints(schema=schema, description=description)
    one_call = not flag(given, "parallel_tool_calls", default=True)
    return AnswerConstraints(calls, allowed, one_call, schema, description)


def _choice(value: Any) -> tuple[Literal["auto", "none", "required"], tuple[str, ...]]:
    """``calls`` and ``allowed`` of ``AnswerConstraints``."""
    match value:
        case "auto" | "none" | "required":
            return value, ()
        case {"type": "function"}:
            return "required", (_name(value),)
        case {"type": "allowed_tools"}:
            match value.get("allowed_tools", value):
                case {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
                    return mode, tuple(map(_name, tools))
    raise bad_request(
        f"tool_choice must be 'auto', 'none', 'required', a function by name, or allowed_tools "
        f"with a mode and their names, got {value!r}"
    )


def _name(value: Any) -> str:
    """The name of a function, in either API's form."""
    match value:
        case {"type": "function"}:
            match value.get("function", value):
                case {"name": str(name)}:
                    return name
    raise bad_request(f"tool_choice must name a tool of type function, got {value!r}")


def _format(value: Any) -> tuple[str, str]:
    """The schema of the answer's text, and its description."""
    match value:
        case None | {"type": "text"}:
            return "", ""
        case {"type": "json_object"}:
            return '{"type": "object"}', ""
        case {"type": "json_schema"}:
            match value.get("json_schema", value):
                case {"schema": {} as schema, **others}:
                    return schema_text(schema), str(others.get("description") or "")
    raise bad_request(
        f"the format of the answer must be text, json_object, or json_schema with a schema, got "
        f"{value!r}"
    )


def listed(given: Mapping[str, Any], name: str) -> list[Any]:
    """The list of a key; empty if the key is absent."""
    value = given.get(name, [])
    if not isinstance(value, list):
        raise bad_request(f"{name} must be a list, got {type(value).__name__}")
    return value


def whole_number(name: str, value: Any) -> int | None:
    """An integer of at least 1, or None."""
    if value is not None and (type(value) is not int or value < 1):
        raise bad_request(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def number(name: str, value: Any) -> float:
    """A number that is no bool."""
    if type(value) not in (int, float):
        raise bad_request(f"{name} must be a number, got {value!r}")
    return value  # type: ignore[no-any-return]


def flag(given: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """True or false."""
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false, got {value!r}")
    return value


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
        PolicyApiError: 400, with the key, the rule and the value found.
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
