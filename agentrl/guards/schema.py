"""Schema: a JSON Schema (Draft 2020-12) that is checked once and refers to nothing outside itself.

Nothing is ever fetched, and a value is held against it within bounds of time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import islice
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrl.guards.bounded_json import parse_json
from agentrl.guards.patterns import BoundedValidator, compiled, pattern_budget

_REFERENCES = ("$ref", "$dynamicRef")


class SchemaFault(ValueError):  # noqa: N818 - what a schema has, not what a program does
    """Why a schema is none, as the end of a sentence about it."""


@functools.lru_cache(maxsize=1024)
def schema_validator(text: str) -> Draft202012Validator:
    """A validator for a schema; equal ones are checked once.

    Args:
        text: the schema as JSON.

    Raises:
        SchemaFault: it is none, or refers to what is not in it.
    """
    try:
        schema = parse_json(text)
        Draft202012Validator.check_schema(schema)
        registry: Registry[Any] = Registry()  # that fetches nothing
        validator = BoundedValidator(schema, registry=registry)
        _check_parts(schema, registry)
        validator.is_valid({})
    except SchemaError as error:
        raise SchemaFault(f"is no JSON Schema at {error.json_path}: {error.message}") from None
    except RecursionError:
        raise SchemaFault("refers to itself without an end") from None
    except SchemaFault:
        raise
    except ValueError as error:
        raise SchemaFault(f"is no JSON Schema: {error}") from None
    return validator


def broken_rules(
    validator: Draft202012Validator, value: Any, *, seconds: float, most: int
) -> list[ValidationError]:
    """The rules that a value breaks, the first ``most`` of them.

    Args:
        validator: of ``schema_validator``.
        value: of JSON.
        seconds: that all its patterns may take together.
        most: at most so many.

    Raises:
        SlowPatternError: they took longer.
        SchemaFault: value or schema are nested too deeply to be compared.
    """
    try:
        with pattern_budget(seconds):
            return list(islice(validator.iter_errors(value), most))
    except RecursionError:
        raise SchemaFault("cannot be followed: value or schema are nested too deeply") from None


def _check_parts(schema: Any, registry: Registry[Any]) -> None:
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
                raise SchemaFault(
                    f"refers to {reference!r}, which is not in it, and nothing is fetched; copy it "
                    "into '$defs' and refer to '#/$defs/NAME'"
                ) from None
        own_pattern = [rules["pattern"]] if "pattern" in rules else []
        for pattern in (*own_pattern, *rules.get("patternProperties", ())):
            try:
                compiled(pattern)
            except regex.error as error:
                raise SchemaFault(
                    f"has {pattern!r}, which is no regular expression: {error}"
                ) from None
        if "unevaluatedProperties" in rules and "patternProperties" in rules:
            raise SchemaFault(
                "has unevaluatedProperties beside patternProperties, which is not supported; use "
                "additionalProperties"
            )
