"""The schema's verdict in words: which key, which rule, which value, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentrl.config.document import Key, dotted
from agentrl.config.problems import nearest, suggestion
from agentrl.types.section import Section, entry_section, plain_section

__all__ = ["Fault", "known_keys", "section_at", "show", "validation_faults"]

_KINDS = {
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping of settings",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must fit the pattern {pattern}",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule before it has a place: the keys that it is about, the first being the one to mend.

    Args:
        keys: at least one.
        message: the rule, the value found and the mend; its first ``{key}`` stands for the first key as written.
    """

    keys: tuple[Key, ...]
    message: str


def validation_faults(error: ValidationError, root: type[Section]) -> Iterator[Fault]:
    """Every fault that the schema found."""
    for detail in error.errors(include_url=False):
        if detail["type"] != "default_factory_not_called":  # it only follows from another fault
            yield Fault((detail["loc"],), _words(detail, root))


def _words(detail: ErrorDetails, root: type[Section]) -> str:
    kind, key = detail["type"], detail["loc"]
    if kind == "missing":
        return "{key} is required"
    if kind == "extra_forbidden":
        return "unknown key {key}" + _meant(root, key)
    bounds = {
        name: f"{value:g}" if isinstance(value, float) else value
        for name, value in detail.get("ctx", {}).items()
    }
    rule = _KINDS[kind].format(**bounds) if kind in _KINDS else detail["msg"]
    return "{key} " + f"{rule}, got {show(detail['input'])}" + _nearest_choice(detail)


def _nearest_choice(detail: ErrorDetails) -> str:
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return ""
    return suggestion(detail["input"], re.findall(r"'([^']*)'", detail["ctx"]["expected"]))


def show(value: Any) -> str:
    """``value`` as an error message shows it, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def section_at(root: type[Section], key: Key) -> type[Section] | None:
    """The section that ``key`` leads to from ``root``; None where it leads to a plain value."""
    section: type[Section] | None = root
    rest = list(key)
    while rest and section is not None:
        field = section.model_fields.get(str(rest.pop(0)))
        annotation = field and field.annotation
        section = plain_section(annotation)
        if section is None and rest and (section := entry_section(annotation)) is not None:
            rest.pop(0)  # the entry of a list or mapping
    return section


def known_keys(root: type[Section], prefix: Key = ()) -> Iterator[Key]:
    """Every key of ``root`` down to its plain values, without those in lists and mappings."""
    for name, field in root.model_fields.items():
        key = (*prefix, field.alias or name)
        yield key
        if (inner := plain_section(field.annotation)) is not None:
            yield from known_keys(inner, key)


def _meant(root: type[Section], key: Key) -> str:
    """What an unknown key was probably meant to be: the same name in another section, or a near one in this."""
    name, here = str(key[-1]), key[:-1]
    section = section_at(root, here)
    siblings = (
        [field.alias or own for own, field in section.model_fields.items()] if section else []
    )
    leaves = {str(known[-1]): known for known in known_keys(root)}
    if name in leaves:
        return f"; did you mean {dotted(leaves[name])}?"
    near = nearest(name, siblings)
    return f"; did you mean {dotted((*here, near))}?" if near is not None else ""
