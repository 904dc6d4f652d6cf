"""Request: one completion that is asked for, and the keys that all dialects share.

- A key is refused by name if it would change the sampled tokens, if its effect would be missing in
  the answer, or if it holds a part of the conversation that this dialect does not read.
- A key without any such effect is noted in the turn (``Turn.info["ignored"]``), and so are unknown
  keys unless they are to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.agent_server.api.api_error import bad_request
from agentrl.agent_server.api.constraints import AnswerConstraints, schema_text
from agentrl.guards.secret_mask import beginning
from agentrl.types import Message, ToolSpec
from agentrl.types.user_code.values import finite_number, shown

SAMPLING = frozenset({"temperature", "top_p", "seed"})
_NOTED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "client_metadata"}
    | {
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "cache_control",
    }
    | {
        "reasoning_effort",
        "verbosity",
        "prediction",
        "reasoning",
        "truncation",
        "max_tool_calls",
    }
    | {"thinking", "context_management", "effort", "top_k"}
)
_CONVERSATION = frozenset(
    {"messages", "system", "input", "instructions", "functions", "prompt", "conversation"}
    | {"previous_response_id", "prefill"}
)
_NOTED_CHARS = 200
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
    body: Mapping[str, Any], taken: frozenset[str], *, strict: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refuses unsupported keys.

    Args:
        body: the request.
        taken: the keys that the caller parses.
        strict: refuse unknown keys, too.

    Returns:
        The request without its nulls, which mean the same as absent keys; and the ignored keys that
        are noted in the turn, with the beginnings of their values.

    Raises:
        PolicyApiError: 400, with the key, the rule and the value found.
    """
    given = {name: value for name, value in body.items() if value is not None}
    ignored = {}
    for name, value in given.items():
        if name in _ONLY:
            if value not in _ONLY[name]:
                raise bad_request(
                    f"{name} must be {_ONLY[name][0]!r} here or be left out, got {noted(value)!r}"
                )
        elif name in taken | SAMPLING:
            continue
        elif name in _CONVERSATION or (strict and name not in _NOTED):
            raise bad_request(
                f"{name} is not supported by this route, got {noted(value)!r}; leave it out, or "
                "ask the route of the API that has it"
            )
        else:
            ignored[name] = noted(value)
    return given, ignored


def noted(value: Any) -> Any:
    """A value as a turn notes it: the beginning of its text where it is long."""
    text = repr(value)
    return value if len(text) <= _NOTED_CHARS else beginning(text, _NOTED_CHARS)


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


def stop_strings(name: str, value: Any) -> tuple[str, ...]:
    """The strings that end a completion."""
    if not isinstance(value, list) or not all(
        isinstance(text, str) and text for text in value
    ):
        raise bad_request(f"{name} must be text or a list of texts, got {noted(value)!r}")
    return tuple(value)


def whole_number(name: str, value: Any) -> int | None:
    """An integer of at least 1, or None."""
    if value is not None and (type(value) is not int or value < 1):
        raise bad_request(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def number_of(name: str, value: Any) -> float:
    """A number that is no bool, and that a float can hold."""
    if type(value) not in (int, float) or finite_number(value) is None:
        raise bad_request(
            f"{name} must be a number that a float can hold, got {shown(value)}"
        )
    return value  # type: ignore[no-any-return]


def flag(given: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """True or false."""
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false, got {value!r}")
    return value


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


def request_of(
    given: Mapping[str, Any],
    ignored: dict[str, Any],
    *,
    strict: bool,
    parse_tool: Callable[[Any, str], ToolSpec],
    text_format: Any,
    messages: Sequence[Message],
    types: frozenset[str] = frozenset({"function"}),
    **fields: Any,
) -> ChatRequest:
    """The request, with the keys that all dialects share read from ``given``.

    Args:
        given: the request without its nulls; ``tool_choice`` and ``parallel_tool_calls`` as OpenAI
            has them.
        ignored: see ``given_keys``; the tools that are left out are added.
        strict: refuse tools of other types than ``types``.
        parse_tool: parses a tool on offer, in the dialect's form.
        text_format: the format of the answer's text, in the dialect's form.
        messages: the conversation.
        types: types of tools that the agent runs itself. Tools of other types are left out, because
            nobody here runs them.
        fields: the other fields of ``ChatRequest``.

    Raises:
        PolicyApiError: nothing is to be answered, or a result answers no call.
    """
    if not messages or messages[-1]["role"] == "assistant":
        raise bad_request(
            "messages (or input) must end with what the assistant is to answer, words of the user "
            f"or a tool's result, got {'an assistant message' if messages else 'no message'}"
        )
    _check_results(messages)
    tools, left_out = [], []
    for number, tool in enumerate(listed(given, "tools")):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if strict or not isinstance(kind, str) or kind in types:
            tools.append(parse_tool(tool, f"tools[{number}]"))
        else:
            left_out.append(f"{tool.get('name', kind)} ({kind})")
    if left_out:
        ignored["tools"] = left_out
    return ChatRequest(
        messages=tuple(messages),
        tools=tuple(tools),
        constraints=constraints_of(given, text_format, tools),
        sampling={name: number_of(name, given[name]) for name in SAMPLING & given.keys()},
        ignored=ignored,
        stream=flag(given, "stream"),
        model=str(given.get("model", "")),
        **fields,
    )


def _check_results(messages: Sequence[Message]) -> None:
    made: set[str] = set()
    for message in messages:
        made.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in made:
            raise bad_request(
                f"the result of the call {message['tool_call_id']!r} must follow that call, and "
                f"the conversation before it has {', '.join(sorted(made)) or 'none'}; send the "
                "assistant's message with it"
            )
