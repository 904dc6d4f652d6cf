"""Argument validation: JSON Schema (Draft 2020-12), with errors that a model can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl.errors import ToolError, did_you_mean
from agentrl.guards.schema import BrokenRule, CheckedSchema, SchemaFault, checked_schema

_MAX_FAULTS = 3
_MAX_VALUE_CHARS = 80


def schema_validator(parameters: Mapping[str, Any], name: str) -> CheckedSchema:
    """A validator for a tool's ``parameters``; equal ones are checked once, since every episode
    asks for its tools'.

    Raises:
        ToolError: they are no JSON Schema, or not one of an object.
    """
    try:
        text = json.dumps(dict(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"tool {name!r}: its parameters are no JSON: {error}") from None
    try:
        validator = checked_schema(text)
    except SchemaFault as fault:
        raise ToolError(f"tool {name!r}: the schema of its parameters {fault}") from None
    if parameters.get("type") != "object":
        raise ToolError(
            f"tool {name!r}: the schema of its parameters must have type 'object', got "
            f"{parameters.get('type')!r}; "
            'wrap the arguments as {"type": "object", "properties": {...}}'
        )
    return validator


def argument_faults(schema: CheckedSchema, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with ``arguments``: a sentence a fault, at most three, naming argument, rule
    and value.
    """
    try:
        found = schema.broken(dict(arguments))
    except SchemaFault as fault:
        return (f"the tool's schema {fault}; give fewer and flatter arguments",)
    except ValueError as error:
        return (f"the arguments cannot be checked: {error}; correct them",)
    found.sort(key=lambda broken: (list(map(str, broken.path)), broken.message))
    # Two missing arguments are two equal sentences.
    sentences = dict.fromkeys(_sentence(broken) for broken in found)
    return tuple(sentences)[:_MAX_FAULTS]


def _sentence(broken: BrokenRule) -> str:
    argument = f"argument {broken.json_path.removeprefix('$').removeprefix('.')!r}"
    where = argument if broken.path else "the arguments"
    inside = f"in {argument}: " if broken.path else ""
    value, rule = _short(broken.value), broken.rule
    if broken.is_slow:
        return f"{broken.message}; give a shorter one"
    match broken.keyword:
        case "required":
            missing = [repr(key) for key in rule if key not in broken.value]
            words = "argument {} is" if len(missing) == 1 else "arguments {} are"
            return f"{inside}{words.format(' and '.join(missing))} missing"
        case "additionalProperties" if isinstance(broken.value, Mapping):
            known = list(broken.beside.get("properties", ()))
            unknown = next(key for key in broken.value if key not in known)
            listed = f"the arguments are {', '.join(known) or 'none'}"
            meant = did_you_mean(unknown, known, listed)
            return f"{inside}there is no argument {_short(unknown)}{meant}"
        case "type":
            wanted = rule if isinstance(rule, str) else " or ".join(rule)
            return f"{where} must be of type {wanted}, got {value}"
        case "enum":
            return f"{where} must be one of {_short(rule)}, got {value}"
        case _:
            return f"{where} breaks the rule {broken.keyword} {_short(rule)}, got {value}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
