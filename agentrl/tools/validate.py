"""Argument validation: JSON Schema (Draft 2020-12), with errors that a model can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from agentrl.errors import ToolError, did_you_mean
from agentrl.guards.patterns import SlowPatternError
from agentrl.guards.plain_check import plainly_right
from agentrl.guards.schema import SchemaFault, broken_rules
from agentrl.guards.schema import schema_validator as checked
from agentrl.tools.threads import BoundedThreads
from agentrl.types.user_code.wall import DeadlineError

_MAX_FAULTS = 3
_MAX_FOUND = 100  # of which the first are told
_PATTERNS_S = 1.0
_DEADLINE_S = 10.0
_CHECKS = BoundedThreads(2, "agentrl-arguments")  # more would only wait for the interpreter's lock
_MAX_VALUE_CHARS = 80


def schema_validator(parameters: Mapping[str, Any], name: str) -> Draft202012Validator:
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
        validator = checked(text)
    except SchemaFault as fault:
        raise ToolError(f"tool {name!r}: the schema of its parameters {fault}") from None
    if parameters.get("type") != "object":
        raise ToolError(
            f"tool {name!r}: the schema of its parameters must have type 'object', got "
            f"{parameters.get('type')!r}; "
            'wrap the arguments as {"type": "object", "properties": {...}}'
        )
    return validator


async def found_faults(
    validator: Draft202012Validator, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """``argument_faults`` without holding up an event loop: in a thread, but for what can be seen
    at a glance.
    """
    if plainly_right(cast(Mapping[str, Any], validator.schema), arguments):
        return ()
    try:
        return await _CHECKS.run(
            lambda: argument_faults(validator, arguments), deadline_s=_DEADLINE_S
        )
    except DeadlineError:
        return (f"the arguments cannot be checked within {_DEADLINE_S:g} s; give shorter ones",)


def argument_faults(
    validator: Draft202012Validator, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """What is wrong with ``arguments``: a sentence a fault, at most three, naming argument, rule
    and value.
    """
    try:
        found = broken_rules(validator, dict(arguments), seconds=_PATTERNS_S, most=_MAX_FOUND)
    except SlowPatternError as error:
        return (f"{error}; give a shorter one",)
    except SchemaFault as fault:
        return (f"the tool's schema {fault}; give flatter arguments",)
    errors = sorted(found, key=lambda error: (list(map(str, error.path)), error.message))
    # two missing arguments are two equal sentences
    sentences = dict.fromkeys(_sentence(error) for error in errors)
    return tuple(sentences)[:_MAX_FAULTS]


def _sentence(error: ValidationError) -> str:
    path = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
    )
    argument = f"argument {path.removeprefix('.')!r}"
    where = argument if path else "the arguments"
    inside = f"in {argument}: " if path else ""
    instance: Any = error.instance
    rule: Any = error.validator_value
    schema: Any = error.schema
    match error.validator:
        case "required":
            missing = [repr(key) for key in rule if key not in instance]
            words = "argument {} is" if len(missing) == 1 else "arguments {} are"
            return f"{inside}{words.format(' and '.join(missing))} missing"
        case "additionalProperties" if rule is False:
            known = list(schema.get("properties", ()))
            unknown = next(key for key in instance if key not in known)
            listed = f"the arguments are {', '.join(known) or 'none'}"
            meant = did_you_mean(unknown, known, listed)
            return f"{inside}there is no argument {_short(unknown)}{meant}"
        case "type":
            wanted = rule if isinstance(rule, str) else " or ".join(rule)
            return f"{where} must be of type {wanted}, got {_short(instance)}"
        case "enum":
            return f"{where} must be one of {_short(rule)}, got {_short(instance)}"
        case _:
            return (
                f"{where} breaks the rule {error.validator} {_short(rule)}, got {_short(instance)}"
            )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
