"""Bounded patterns: regular expressions, and the keywords of a schema, with a limit on time.

What is checked is the policy's: a pattern that backtracks must neither hold up other episodes nor
run without an end, so it is matched without the interpreter's lock.
"""

from __future__ import annotations

import contextvars
import functools
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

_ENDS_AT: contextvars.ContextVar[float] = contextvars.ContextVar("_ENDS_AT", default=float("inf"))
_LEAST_S = 0.001


class SlowPatternError(ValueError):
    """The patterns of a schema took longer than they may for these arguments."""


@contextmanager
def pattern_budget(seconds: float) -> Iterator[None]:
    """Seconds that all patterns matched within may take together; past them a SlowPatternError."""
    token = _ENDS_AT.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS_AT.reset(token)


@functools.lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """The pattern as it is matched.

    Raises:
        regex.error: it is no regular expression.
    """
    return regex.compile(pattern)


def whole_match(pattern: str, text: str, *, seconds: float) -> bool:
    """Whether a pattern fits a whole text.

    Raises:
        regex.error: it is no regular expression.
        SlowPatternError: it takes longer than ``seconds``.
    """
    with pattern_budget(seconds):
        return _found(pattern, text, "fullmatch")


def _found(pattern: str, text: str, how: str = "search") -> bool:
    left = max(_LEAST_S, _ENDS_AT.get() - time.monotonic())
    match = getattr(compiled(pattern), how)
    try:
        # concurrent: the interpreter's lock is given up while it searches
        bound = None if left == float("inf") else left
        return match(text, timeout=bound, concurrent=True) is not None
    except TimeoutError:
        raise SlowPatternError(
            f"the pattern {pattern!r} takes too long for the text given"
        ) from None


def _pattern(
    _validator: Any, pattern: str, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, rules: Mapping[str, Any], instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, Mapping):
        return
    for pattern, rule in rules.items():
        for key, value in instance.items():
            if _found(pattern, key):
                yield from validator.descend(value, rule, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, rule: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if not isinstance(instance, Mapping):
        return
    named = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    extra = [
        key
        for key in instance
        if key not in named and not any(_found(pattern, key) for pattern in patterns)
    ]
    if isinstance(rule, Mapping):
        for key in extra:
            yield from validator.descend(instance[key], rule, path=key)
    elif not rule and extra:
        yield ValidationError(f"{extra} are not allowed")


def _unique_items(
    _validator: Any, rule: bool, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    """In linear time; the library compares each item with each other."""
    if rule and isinstance(instance, list):
        written = {json.dumps(_canonical(item), sort_keys=True) for item in instance}
        if len(written) < len(instance):
            yield ValidationError("an item stands there twice")


def _canonical(value: Any) -> Any:
    """The same for equal JSON: 1.0 is 1, and true is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return (
        {key: _canonical(item) for key, item in value.items()} if isinstance(value, dict) else value
    )


BoundedValidator: type[Draft202012Validator] = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    },
)
"""Draft 2020-12 with these keywords."""
