"""Request options: parses, notes or refuses the keys that both of OpenAI's APIs share.

- A key is refused by name if it would change the sampled tokens, or if its effect would be missing
  in the answer.
- A key without either effect is noted in the turn (``Turn.info["ignored"]``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl.agent_server.api.api_error import bad_request
from agentrl.agent_server.api.constraints import AnswerConstraints, schema_text
from agentrl.types import ToolSpec

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
        ApiError: 400, with the key, the rule and the value found.
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
        ApiError: a form that OpenAI does not define, or that no function tool can satisfy.
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
