"""Request options: parses, notes or refuses the keys that both of OpenAI's APIs share.

- A key is refused by name if it would change the sampled tokens, or if its effect would be missing
  in the answer.
- A key without either effect is noted in the turn (``Turn.info["ignored"]``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl.agent_server.api.answer_schema import schema_text
from agentrl.agent_server.api.api_error import bad_request
from agentrl.agent_server.api.constraints import AnswerConstraints
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


def check_keys(given: Mapping[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    """Refuses unsupported keys.

    Args:
        given: the request without its nulls.
        taken: the keys that the caller parses.

    Returns:
        The ignored keys that are noted in the turn, with their values.

    Raises:
        ApiError: 400, with the key, the rule and the value found.
    """
    for name, value in given.items():
        if name in _ONLY:
            if value not in _ONLY[name]:
                raise bad_request(
                    f"{name} must be {_ONLY[name][0]!r} here or be left out, got {value!r}"
                )
        elif name not in taken | SAMPLING | _OF_NO_EFFECT | _NOTED:
            raise bad_request(f"{name} is not supported here, got {value!r}; leave it out")
    return {name: value for name, value in given.items() if name in _NOTED}


def constraints_of(
    choice: Any, parallel: Any, text: Any, tools: Sequence[ToolSpec]
) -> AnswerConstraints:
    """The client's constraints of the answer.

    Args:
        choice: ``tool_choice``, in either API's form.
        parallel: ``parallel_tool_calls``.
        text: ``response_format``, or the ``format`` of Responses' ``text``.
        tools: the tools on offer.

    Raises:
        ApiError: a form that OpenAI does not define, or that no function tool can satisfy.
    """
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
    one_call = not flag("parallel_tool_calls", True if parallel is None else parallel)
    return AnswerConstraints(calls, allowed, one_call, schema, description)


def _choice(value: Any) -> tuple[Literal["auto", "none", "required"], tuple[str, ...]]:
    """``calls`` and ``allowed`` of ``AnswerConstraints``."""
    for word in ("auto", "none", "required"):
        if value == word:
            return word, ()
    if value is None:
        return "auto", ()
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "function":
        return "required", (_name(value),)
    if kind == "allowed_tools":
        inner = value.get("allowed_tools", value)
        tools = inner.get("tools") if isinstance(inner, Mapping) else None
        if isinstance(tools, list) and tools and inner.get("mode") in ("auto", "required"):
            return "auto" if inner["mode"] == "auto" else "required", tuple(
                _name(tool) for tool in tools
            )
    raise bad_request(
        f"tool_choice must be 'auto', 'none', 'required', a function by name, or allowed_tools "
        f"with a mode and their names, got {value!r}"
    )


def _name(value: Any) -> str:
    """The name of a function, in either API's form."""
    named = (
        value.get("function", value)
        if isinstance(value, Mapping) and value.get("type") == "function"
        else None
    )
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(name, str):
        raise bad_request(f"tool_choice must name a tool of type function, got {value!r}")
    return name


def _format(value: Any) -> tuple[str, str]:
    """The schema of the answer's text, and its description."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if value is None or kind == "text":
        return "", ""
    if kind == "json_object":
        return '{"type": "object"}', ""
    if isinstance(value, Mapping) and kind == "json_schema":
        inner = value.get("json_schema", value)
        if isinstance(inner, Mapping) and isinstance(inner.get("schema"), Mapping):
            return schema_text(inner["schema"]), str(inner.get("description") or "")
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
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise bad_request(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def number(name: str, value: Any) -> float:
    """A number that is no bool."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise bad_request(f"{name} must be a number, got {value!r}")
    return value


def flag(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false, got {value!r}")
    return value
