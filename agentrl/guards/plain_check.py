"""Plain check: whether arguments are right by a schema of everyday rules, within microseconds.

It only ever says yes: what it does not know, or finds wrong, is for the validator, which takes ten
times as long and says what is wrong. It looks at a bounded number of values, so that an event loop
may run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_VALUES = 1000
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
_NOTES = frozenset({"title", "description", "default", "examples"})
_RULES: Mapping[str, frozenset[str]] = {
    "string": frozenset({"type", "enum", "minLength", "maxLength"}) | _NOTES,
    "integer": frozenset({"type", "enum", "minimum", "maximum"}) | _NOTES,
    "number": frozenset({"type", "enum", "minimum", "maximum"}) | _NOTES,
    "boolean": frozenset({"type"}) | _NOTES,
    "null": frozenset({"type"}) | _NOTES,
    "object": frozenset({"type", "properties", "required", "additionalProperties"}) | _NOTES,
    "array": frozenset({"type", "items", "minItems", "maxItems"}) | _NOTES,
}


_ANY_OF = frozenset({"anyOf"}) | _NOTES
_DEFINITIONS = "#/$defs/"


class _UnknownError(Exception):
    """The value is wrong, or a rule is none that is known here."""


def plainly_right(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether ``arguments`` are right by ``schema``; False says nothing."""
    own = {key: rule for key, rule in schema.items() if key != "$defs"}
    try:
        _Check(schema.get("$defs", {})).check(own, arguments)
    except (_UnknownError, RecursionError):
        return False
    return True


class _Check:
    """One check.

    Args:
        definitions: what a schema may refer to.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._room = _MAX_VALUES

    def check(self, schema: Any, value: Any) -> None:
        """Looks at a value and all within it."""
        self._room -= 1
        if self._room < 0 or type(schema) is not dict:
            raise _UnknownError
        kind = schema.get("type")
        # exact types: True is no integer, and a number with a fraction of 0 is for the validator
        if type(kind) is not str or type(value) not in _TYPES.get(kind, ()):
            self._check_untyped(schema, value)
            return
        if not schema.keys() <= _RULES[kind]:
            raise _UnknownError
        if "enum" in schema:
            _check_enum(schema["enum"], value)
        if kind == "object":
            self._check_object(schema, value)
        elif kind == "array":
            self._check_array(schema, value)
        else:
            _check_size(schema, value, kind)

    def _check_untyped(self, schema: Mapping[str, Any], value: Any) -> None:
        """A schema that refers to a definition, has alternatives, or lists its values."""
        reference = schema.get("$ref")
        if type(reference) is str and reference.startswith(_DEFINITIONS):
            if schema.keys() - {"$ref"} <= _NOTES:
                self.check(self._definitions.get(reference.removeprefix(_DEFINITIONS)), value)
                return
        elif "anyOf" in schema and schema.keys() <= _ANY_OF:
            for one in schema["anyOf"]:
                try:
                    self.check(one, value)
                except _UnknownError:
                    continue
                return
        elif "enum" in schema and schema.keys() - {"enum"} <= _NOTES:
            _check_enum(schema["enum"], value)
            return
        raise _UnknownError

    def _check_object(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        for name in schema.get("required", ()):
            if name not in value:
                raise _UnknownError
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name, inner in value.items():
            rule = properties.get(name, others)
            if rule is not True:  # False is no schema either
                self.check(rule, inner)

    def _check_array(self, schema: Mapping[str, Any], value: list[Any]) -> None:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            raise _UnknownError
        rule = schema.get("items", True)
        for inner in value if rule is not True else ():
            self.check(rule, inner)


def _check_enum(values: list[Any], value: Any) -> None:
    """Compared within one scalar type: 1 is neither 1.0 nor True."""
    if type(value) in (dict, list) or not any(
        type(one) is type(value) and one == value for one in values
    ):
        raise _UnknownError


def _check_size(schema: Mapping[str, Any], value: Any, kind: str) -> None:
    size = len(value) if kind == "string" else value
    low, high = ("minLength", "maxLength") if kind == "string" else ("minimum", "maximum")
    if (low in schema and not size >= schema[low]) or (high in schema and not size <= schema[high]):
        raise _UnknownError
