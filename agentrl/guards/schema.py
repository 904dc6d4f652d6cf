"""Schema: a JSON Schema (Draft 2020-12) that is checked once, and values that are held against it.

- Nothing is ever fetched: a schema refers to nothing outside itself.
- Patterns are matched in linear time; those that look around or back have a limit of steps.
- A check holds the interpreter's lock, so how often rules are tried is bounded before it begins: a
  schema may send a value to many rules, and each of them to many more at the next level.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
)

from agentrl.guards.parsing import extent, parse_json, within

_MOST_TRIED = 10**7
"""Rules that a check may try: a tenth of a second."""
_MOST_VALUES = 10**6
"""Values that are counted, on an event loop: so many take a tenth of a second too."""
_MOST_TOLD = 20_000
"""Rules up to which it is said which one a value breaks: each takes 10,000 times as long."""
_BACKTRACKS = 10_000
_LOOKS_AROUND = 15_000
"""What a pattern with that limit may take, in rules."""
_QUOTED = re.compile(r"'([^']*)'")

_REFERENCES = ("$ref", "$dynamicRef")
# Keywords that hold schemas, by whether these are tried on the value itself, all on what is within
# it, or one of them on what is within.
_HERE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
)
_ALL_WITHIN = frozenset(
    {
        "additionalProperties",
        "contains",
        "items",
        "patternProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_ONE_WITHIN = frozenset({"prefixItems", "properties"})
_BY_NAME = ("dependentSchemas", "patternProperties", "properties")


# No error by name: it is what a schema has, not what a program does.
class SchemaFault(ValueError):  # noqa: N818
    """Why a schema is none, as the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that a value breaks.

    Args:
        path: to what breaks it: names and positions.
        keyword: of the rule.
        rule: the keyword's value in the schema.
        beside: the part of the schema that it stands in.
        value: what breaks it.
        message: the same in words.
        is_slow: whether it is a pattern that was given up.
    """

    path: Sequence[str | int]
    keyword: str
    rule: Any
    beside: Mapping[str, Any]
    value: Any
    message: str
    is_slow: bool = False

    @property
    def json_path(self) -> str:
        """The path from ``$``, the value itself."""
        return "$" + "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path
        )


@functools.lru_cache(maxsize=1024)
def checked_schema(text: str) -> CheckedSchema:
    """A schema; equal ones are checked once.

    Args:
        text: the schema as JSON.

    Raises:
        SchemaFault: it is none, or refers to what is not in it.
    """
    try:
        return CheckedSchema(parse_json(text))
    except ValidationError as error:
        if error.kind.name in _REFERENCES:
            found = _QUOTED.search(error.message)
            raise _elsewhere(found[1] if found else error.message) from None
        rule = BrokenRule(error.instance_path, "", None, {}, None, "")
        raise SchemaFault(
            f"is no JSON Schema at {rule.json_path}: {error.message}"
        ) from None
    except SchemaFault:
        raise
    except ValueError as error:
        raise SchemaFault(f"is no JSON Schema: {error}") from None


class CheckedSchema:
    """A schema that values are held against.

    Args:
        schema: as parsed JSON; nobody changes it.

    Raises:
        ValidationError: it breaks a rule of the schema of schemas.
        SchemaFault: it refers to itself without an end.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._tries = _Tries(schema)
        self._least_tries = 1
        linear = RegexOptions()
        try:
            self._validator = Draft202012Validator(
                schema, pattern_options=linear, offline=True
            )
        except ValidationError as error:
            if error.kind.name not in ("format", "pattern", "patternProperties"):
                raise
            bounded = FancyRegexOptions(backtrack_limit=_BACKTRACKS)
            self._validator = Draft202012Validator(
                schema, pattern_options=bounded, offline=True
            )
            self._least_tries = _LOOKS_AROUND
        self._tries.most(0)

    def is_valid(self, value: Any) -> bool:
        """Whether a value keeps every rule.

        Raises:
            SchemaFault: too many rules would have to be tried.
            ValueError: it is nested too deeply.
        """
        self._num_tries(value)
        return self._validator.is_valid(value)

    def broken(self, value: Any) -> list[BrokenRule]:
        """The rules that a value of JSON breaks.

        Raises:
            SchemaFault: too many rules would have to be tried, to find them or to say which.
            ValueError: it is nested too deeply, or has half of a surrogate pair.
        """
        num_tries = self._num_tries(value)
        if self._validator.is_valid(value):
            return []
        if num_tries > _MOST_TOLD:
            raise SchemaFault(
                "is broken, and has too many rules for so many values to say where"
            )
        return [self._told(error, value) for error in self._validator.iter_errors(value)]

    def _num_tries(self, value: Any) -> int:
        """How often rules may be tried on a value, and on all within it."""
        num_values, depth = extent(value, _MOST_VALUES)
        found = num_values * self._tries.most(depth)
        if max(found, num_values * self._least_tries) > _MOST_TRIED:
            raise SchemaFault(
                "cannot be followed: too many rules for so many values, or so deep"
            )
        return found

    def _told(self, error: ValidationError, value: Any) -> BrokenRule:
        found = value
        for part in error.instance_path:
            found = found[part]
        rule = self.schema
        beside: Any = {}
        for part in error.schema_path:
            rule, beside = rule[part], rule
        keyword = error.kind.name
        # Such as that of an object that may have no names at all.
        if keyword == "falseSchema":
            keyword = str(error.schema_path[-1])
        is_slow = isinstance(error.kind, ValidationErrorKind.BacktrackLimitExceeded)
        return BrokenRule(
            path=error.instance_path,
            keyword=keyword,
            rule=rule,
            beside=beside,
            value=found,
            message=f"the pattern {rule!r} takes too long for the text given"
            if is_slow
            else error.message,
            is_slow=is_slow,
        )


class _Tries:
    """How many rules a schema may try along one path into a value.

    Args:
        schema: the whole of it.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[tuple[int, str], Any] = {}
        self._ids: dict[str, Any] = {}
        # Guards both below: episodes of several event loops share a schema.
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()
        self._name(schema, schema)

    def most(self, depth: int) -> int:
        """Those for a value of so many levels.

        Raises:
            SchemaFault: a reference leaves the schema, or leads back to itself.
        """
        with self._lock:
            self._open.clear()
            try:
                return self._of(self._schema, depth, self._schema)
            except RecursionError:
                raise SchemaFault("cannot be followed: it is nested too deeply") from None

    def _name(self, part: Any, resource: Any) -> None:
        """Notes what references may name within a part."""
        if isinstance(part, Mapping):
            if isinstance(own := part.get("$id"), str):
                resource = part
                self._ids[own.removesuffix("#")] = part
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := part.get(keyword), str):
                    self._named[id(resource), anchor] = part
        for inner in within(part):
            self._name(inner, resource)

    def _of(self, part: Any, depth: int, resource: Any) -> int:
        if not isinstance(part, Mapping) or depth < 0:
            return 0
        key = (id(part), depth)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            raise SchemaFault("refers to itself without an end")
        self._open.add(key)
        if "$id" in part:
            resource = part

        def tries(keywords: frozenset[str], depth: int) -> Iterator[list[int]]:
            for keyword in keywords & part.keys():
                inner = _schemas(keyword, part[keyword])
                yield [self._of(one, depth, resource) for one in inner]

        found = 1 + sum(map(sum, tries(_HERE, depth)))
        found += sum(map(sum, tries(_ALL_WITHIN, depth - 1)))
        found += sum(max(one, default=0) for one in tries(_ONE_WITHIN, depth - 1))
        for keyword in _REFERENCES:
            if keyword in part:
                target, own = self._target(part[keyword], resource)
                found += self._of(target, depth, own)
        self._open.discard(key)
        self._known[key] = min(found, _MOST_TRIED + 1)
        return self._known[key]

    def _target(self, reference: str, resource: Any) -> tuple[Any, Any]:
        """The part that a reference leads to, and the resource that this stands in."""
        name, _, fragment = reference.partition("#")
        resource = self._ids.get(name) if name else resource
        if resource is None:
            raise _elsewhere(reference)
        if fragment and not fragment.startswith("/"):
            found = self._named.get((id(resource), fragment))
            if found is None:
                raise _elsewhere(reference)
            return found, resource
        found = resource
        for step in unquote(fragment).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise _elsewhere(reference) from None
        return found, resource


def _schemas(keyword: str, value: Any) -> Iterable[Any]:
    """The schemas that a keyword holds."""
    if keyword in _BY_NAME:
        schemas: Iterable[Any] = value.values()
        return schemas
    return value if isinstance(value, list) else [value]


def _elsewhere(reference: str) -> SchemaFault:
    return SchemaFault(
        f"refers to {reference!r}, which is not in it, and nothing is fetched; copy it into "
        "'$defs' and refer to '#/$defs/NAME'"
    )
