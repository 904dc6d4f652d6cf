"""Plain check: whether arguments are right by a schema of everyday rules, within microseconds.

It only ever says yes: what it does not know, or finds wrong, is for the validator, which takes ten
times as long and says what is wrong. It looks at a bounded number of values, so that an event loop
may run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_MAX_VALUES = 1000
# Exact types: True is no integer, and a number with a fraction of 0 is for the validator.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
_NOTES = frozenset({"type", "title", "description", "default", "examples"})
_DEFINITIONS = "#/$defs/"
# Each is stricter than the rule of its name, also over a value of a type that the rule lets pass.
_RULES: Mapping[str, Callable[[Any, Any], bool]] = {
    # compared within one scalar type: 1 is neither 1.0 nor True
    "enum": lambda rule, value: (
        type(value) not in (dict, list)
        and any(type(one) is type(value) and one == value for one in rule)
    ),
    "minimum": lambda rule, value: bool(value >= rule),
    "maximum": lambda rule, value: bool(value <= rule),
    "minLength": lambda rule, value: len(value) >= rule,
    "maxLength": lambda rule, value: len(value) <= rule,
    "minItems": lambda rule, value: len(value) >= rule,
    "maxItems": lambda rule, value: len(value) <= rule,
    "required": lambda rule, value: all(name in value for name in rule),
}


def plainly_right(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether ``arguments`` are right by ``schema``; False says nothing."""
    own = {key: rule for key, rule in schema.items() if key != "$defs"}
    try:
        return _Check(schema.get("$defs", {})).right(own, arguments)
    # a rule that is not known, or of another type than the value, and what has no end
    except (KeyError, TypeError, AttributeError, RecursionError):
        return False


class _Check:
    """One check.

    Args:
        definitions: what a schema may refer to.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._room = _MAX_VALUES

    def right(self, rules: Any, value: Any) -> bool:
        """Whether a value and all within it is right."""
        self._room -= 1
        if self._room < 0 or type(rules) is not dict:
            return self._room >= 0 and rules is True
        if "type" in rules and type(value) not in _TYPES[rules["type"]]:
            return False
        for key, rule in rules.items():
            if key in _RULES:
                if not _RULES[key](rule, value):
                    return False
            elif key not in _NOTES and not self._inside(rules, key, rule, value):
                return False
        return True

    def _inside(self, rules: Mapping[str, Any], key: str, rule: Any, value: Any) -> bool:
        right = self.right
        match key:
            case "properties":
                return all(right(rule[name], value[name]) for name in value if name in rule)
            case "additionalProperties":
                known = rules.get("properties", ())
                return all(right(rule, value[name]) for name in value if name not in known)
            case "items":
                return all(right(rule, inner) for inner in value)
            case "anyOf":
                return any(right(one, value) for one in rule)
            case "$ref" if rule.startswith(_DEFINITIONS):
                return right(self._definitions[rule.removeprefix(_DEFINITIONS)], value)
        return False
