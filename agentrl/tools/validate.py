"""Argument validation: JSON Schema (Draft 2020-12), with errors that a model can act on.

A schema refers to nothing outside itself: nothing is ever fetched.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrl.errors import ToolError, did_you_mean
from agentrl.tools.execution.plain_check import plainly_right
from agentrl.tools.patterns import BoundedValidator, SlowPatternError, compiled, pattern_budget
from agentrl.tools.threads import BoundedThreads
from agentrl.types.user_code.wall import DeadlineError

_MAX_FAULTS = 3
_MAX_FOUND = 100  # of which the first are told
_PATTERNS_S = 1.0
_DEADLINE_S = 10.0
_CHECKS = BoundedThreads(2, "agentrl-arguments")  # more would only wait for the interpreter's lock
_REFERENCES = ("$ref", "$dynamicRef")
_MAX_VALUE_CHARS = 80


def schema_validator(parameters: Mapping[str, Any], name: str) -> Draft202012Validator:
    """A validator for a tool's ``parameters``; equal ones are checked once, since every episode
    asks for its tools'.

    Raises:
        ToolError: they are no JSON Schema, or not one of an object.
    """
    try:
        text = json.dumps(dict(parameters))
    except (TypeError, ValueError) as error:
        raise ToolError(f"tool {name!r}: its parameters are no JSON: {error}") from None
    return _checked(text, name)


@functools.lru_cache(maxsize=1024)
def _checked(text: str, name: str) -> Draft202012Validator:
    schema = json.loads(text)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ToolError(
            f"tool {name!r}: its parameters are no JSON Schema at {error.json_path}: "
            f"{error.message}"
        ) from None
    if schema.get("type") != "object":
        raise ToolError(
            f"tool {name!r}: the schema of its parameters must have type 'object', got "
            f"{schema.get('type')!r}; "
            'wrap the arguments as {"type": "object", "properties": {...}}'
        )
    registry: Registry[Any] = Registry()  # that fetches nothing
    validator = BoundedValidator(schema, registry=registry)
    try:
        _check_parts(schema, registry, name)
        validator.is_valid({})
    except RecursionError:
        raise ToolError(
            f"tool {name!r}: the schema of its parameters refers to itself without an end"
        ) from None
    return validator


def _check_parts(schema: Mapping[str, Any], registry: Registry[Any], name: str) -> None:
    """Refuses a reference that leaves the schema, and a pattern that is none."""
    root = DRAFT202012.create_resource(schema)
    parts = [(root, registry.resolver_with_root(root))]
    while parts:
        part, resolver = parts.pop()
        inner = [
            DRAFT202012.create_resource(each) for each in DRAFT202012.subresources_of(part.contents)
        ]
        parts += [(each, resolver.in_subresource(each)) for each in inner]
        rules = part.contents if isinstance(part.contents, Mapping) else {}
        for reference in (rules[key] for key in _REFERENCES if key in rules):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                raise ToolError(
                    f"tool {name!r}: the schema of its parameters refers to {reference!r}, which "
                    "is not in it, and "
                    "nothing is fetched; copy it into '$defs' and refer to '#/$defs/NAME'"
                ) from None
        own_pattern = [rules["pattern"]] if "pattern" in rules else []
        for pattern in (*own_pattern, *rules.get("patternProperties", ())):
            try:
                compiled(pattern)
            except regex.error as error:
                raise ToolError(
                    f"tool {name!r}: {pattern!r} in its parameters is no regular expression: "
                    f"{error}"
                ) from None
        if "unevaluatedProperties" in rules and "patternProperties" in rules:
            raise ToolError(
                f"tool {name!r}: unevaluatedProperties beside patternProperties is not supported "
                "in its parameters; use additionalProperties"
            )


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
        with pattern_budget(_PATTERNS_S):
            found = list(islice(validator.iter_errors(dict(arguments)), _MAX_FOUND))
    except SlowPatternError as error:
        return (f"{error}; give a shorter one",)
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
