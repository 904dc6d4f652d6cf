"""Section: a part of the configuration, and the description of the thing that it configures.

- A section is frozen and strict: a text is never read as a number, nor 1.0 as an integer, and
  unknown keys are refused.
- Within a file all faults are collected: ``model_validate`` raises pydantic's error, and
  ``section_faults`` reads it.
- A user of Python who constructs a section, or changes one by ``replace``, gets a ConfigError.
- A field's annotation may be marked by ``ActsWith``, which says beside what it acts.
"""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import ErrorDetails

from agentrl.errors import AgentRLError, ConfigError, did_you_mean, nearest
from agentrl.guards.secret_mask import beginning

T = TypeVar("T")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _as_tuple(value)


def _from_home(value: str | None) -> str | None:
    return value and os.path.expanduser(value)


Natural: TypeAlias = Annotated[int, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Weight: TypeAlias = Annotated[float, Field(ge=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Decay: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0)]
Arguments: TypeAlias = dict[str, Any]
Listed: TypeAlias = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
Words: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_words)]
Folder: TypeAlias = Annotated[str | None, AfterValidator(_from_home)]
"""A folder, or none; ``~`` is the home folder."""

Key: TypeAlias = tuple[str | int, ...]
"""The path of a setting: names of sections and fields, and positions in lists."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule before it has a place in a file.

    Args:
        keys: the settings that it is about, the first being the one to change.
        message: the rule, the value found and the remedy; its first ``{key}`` stands for the first
            key as written.
        value: what was found, where one value is to blame.
    """

    keys: tuple[Key, ...]
    message: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class ActsWith:
    """Marks a field that does nothing but beside some values of another field of its section. Where
    a subclass declares the field again, the rule stays.

    Args:
        other: the other field, or a property.
        only: the values with which it acts; none stand for all others than ``but``.
        but: the values with which it does nothing.
    """

    other: str
    only: tuple[Any, ...] = ()
    but: tuple[Any, ...] = ()

    def fault(self, section: Section, key: Key) -> Fault | None:
        """What is wrong with the field at ``key``, which was given; None where it acts."""
        found = getattr(section, self.other)
        if found in self.only or (not self.only and found not in self.but):
            return None
        other = (*key[:-1], self.other)
        name = ".".join(map(str, other))
        value = getattr(section, str(key[-1]))
        shown = f"={value!r}" if isinstance(value, str | int | float | None) else ""
        wanted = " or ".join(map(repr, self.only)) or "another value"
        return Fault(
            (key, other),
            f"{{key}}{shown} does nothing with {name}={found!r}; leave it out, or set {name} to "
            f"{wanted}",
        )


class _NestedError(ValueError):
    """The faults of a section that a value of another chose, such as an algorithm's settings."""

    def __init__(self, section: type[Section], error: ValidationError, at: Key) -> None:
        super().__init__(str(error))
        self.section = section
        self.error = error
        self.at = at


class Section(BaseModel):
    """A frozen and strict model; rules between its fields are validators that raise
    ``self.broken(...)``.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _config_error(type(self), error) from None

    # pydantic validates a section within another one without calling an __init__ that is marked so:
    # there the fault must stay a ValidationError, which does not end the search for others
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def replace(self, **changes: Any) -> Self:
        """The same with other values, checked as a new one is.

        Raises:
            ConfigError: a value, or a rule between values, does not hold.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **changes})

    @classmethod
    def broken(cls, field: str, rule: str) -> ConfigError:
        """The error for a rule that ``field`` breaks; ``rule`` follows the field's name, as
        `` must be even, got 3``.
        """
        name = f"{cls.__name__}.{field}"
        return ConfigError(f"{name}{rule}", fields=[name])

    @classmethod
    def check_as(cls, values: Any, *at: str | int) -> Self:
        """A section of ``values``, for the validator of another section; its faults are told as
        those of that one, below ``at``.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _NestedError(cls, error, at) from None


def plain_section(annotation: Any) -> type[Section] | None:
    """The section that a field of this type is, or None."""
    return (
        annotation
        if isinstance(annotation, type) and issubclass(annotation, Section)
        else None
    )


def entry_section(annotation: Any) -> type[Section] | None:
    """The section that each entry of a list or mapping of this type is, or None; of a union, of
    its first list or mapping of sections.
    """
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return next(filter(None, map(entry_section, typing.get_args(annotation))), None)
    kinds = typing.get_args(annotation) if origin in (tuple, dict) else ()
    return next(filter(None, map(plain_section, kinds)), None)


def _fields(section: type[Section], prefix: Key) -> Iterator[tuple[Key, Any]]:
    """The keys of a section's fields with their types."""
    for name, field in section.model_fields.items():
        yield (*prefix, field.alias or name), field.annotation


def sections_within(
    root: type[Section], prefix: Key = ()
) -> Iterator[tuple[str, type[Section]]]:
    """Every section in ``root`` with its dotted key, in which ``N`` or ``NAME`` stands for an
    entry.
    """
    for key, annotation in _fields(root, prefix):
        if (section := plain_section(annotation)) is not None:
            yield ".".join(map(str, key)), section
            yield from sections_within(section, key)
        elif (section := entry_section(annotation)) is not None:
            entry = "NAME" if typing.get_origin(annotation) is dict else "N"
            yield ".".join(map(str, (*key, entry))), section


def _marks(section: type[Section], name: str) -> Iterator[Any]:
    """What a field is marked with, by the section or one that it extends."""
    for base in section.__mro__:
        if issubclass(base, Section) and name in base.model_fields:
            yield from base.model_fields[name].metadata


def idle_settings(
    section: Section, at: Key = (), *, defaults: bool = False
) -> Iterator[Fault]:
    """Settings that were given and cannot act beside others.

    Args:
        section: whole.
        at: its key.
        defaults: tell of one that has its default too. Elsewhere such a value changes nothing, and
            a configuration that was printed has them all.
    """
    if isinstance(own := getattr(section, "checked", None), Section):
        yield from idle_settings(own, at, defaults=True)
    for name in type(section).model_fields:
        if name not in section.model_fields_set:
            continue
        value, key = getattr(section, name), (*at, name)
        rules = [mark for mark in _marks(type(section), name) if isinstance(mark, ActsWith)]
        faults = [
            fault for rule in rules if (fault := rule.fault(section, key)) is not None
        ]
        if faults and not defaults:
            default = (
                type(section)
                .model_fields[name]
                .get_default(call_default_factory=True, validated_data=section.__dict__)
            )
            faults = faults if value != default else []
        yield from faults[:1]
        for place, inner in () if faults else _sections_in(value, key):
            yield from idle_settings(inner, place, defaults=defaults)


def _sections_in(value: Any, key: Key) -> Iterator[tuple[Key, Section]]:
    """The section that a field's value is, or those in its list or mapping, with their keys."""
    if isinstance(value, Section):
        yield key, value
    elif isinstance(value, dict | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for step, entry in entries:
            yield from _sections_in(entry, (*key, step))


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
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must fit the pattern {pattern}",
}


def section_faults(
    error: ValidationError,
    section: type[Section],
    root: type[Section] | None = None,
    at: Key = (),
) -> Iterator[Fault]:
    """Every fault that validation found.

    Args:
        error: of ``section.model_validate``.
        section: what was validated.
        root: the whole that ``section`` is in, in which an unknown key may be meant for another
            section.
        at: where ``section`` is in ``root``.
    """
    for detail in error.errors(include_url=False):
        kind = detail["type"]
        key = (*at, *detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        # It only follows from another fault.
        if kind == "default_factory_not_called":
            continue
        if isinstance(cause, _NestedError):
            yield from section_faults(
                cause.error, cause.section, root or section, (*key, *cause.at)
            )
        elif isinstance(cause, AgentRLError):
            field = cause.fields[0].partition(".")[2] if cause.fields else ""
            yield Fault(((*key, *field.split(".")) if field else key,), str(cause))
        elif kind == "extra_forbidden":
            near = meant(section, detail["loc"], root or section, at)
            yield Fault((key,), f"unknown key {{key}}{near}", detail["input"])
        else:
            yield Fault((key,), "{key} " + _rule(detail), detail["input"])


def _rule(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "is required"
    bounds = {
        name: f"{value:g}" if isinstance(value, float) else value
        for name, value in detail.get("ctx", {}).items()
    }
    rule = (
        _KINDS[detail["type"]].format(**bounds)
        if detail["type"] in _KINDS
        else detail["msg"]
    )
    near = ""
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        near = did_you_mean(detail["input"], re.findall(r"'([^']*)'", bounds["expected"]))
    shown = repr(detail["input"])
    return f"{rule}, got {beginning(shown, 80)}{near}"


def meant(section: type[Section], loc: Key, root: type[Section], at: Key) -> str:
    """What an unknown key was probably meant to be: the same name in another section, or a near one
    in this.
    """
    name = str(loc[-1])
    same = [known for known in _known_keys(root) if str(known[-1]) == name]
    owner = _section_at(section, loc[:-1])
    own = [str(key[-1]) for key, _ in _fields(owner, ())] if owner else []
    near = nearest(name, own)
    own_key = (*at, *loc[:-1], near) if near is not None else ()
    # The model's own settings are nearer the top than those of its critic.
    found = min(same, key=len, default=own_key)
    return f"; did you mean {'.'.join(map(str, found))}?" if found else ""


def _section_at(root: type[Section], key: Key) -> type[Section] | None:
    """The section that ``key`` leads to from ``root``; None where it leads to a plain value."""
    section: type[Section] | None = root
    rest = list(key)
    while rest and section is not None:
        field = section.model_fields.get(str(rest.pop(0)))
        annotation = field and field.annotation
        section = plain_section(annotation)
        if section is None and rest and (section := entry_section(annotation)) is not None:
            # This is the entry of a list or mapping.
            rest.pop(0)
    return section


def _known_keys(root: type[Section], prefix: Key = ()) -> Iterator[Key]:
    """Every key of ``root`` down to its plain values, without those in lists and mappings."""
    for key, annotation in _fields(root, prefix):
        yield key
        if (inner := plain_section(annotation)) is not None:
            yield from _known_keys(inner, key)


def _config_error(section: type[Section], error: ValidationError) -> ConfigError:
    """All faults of a section that a user of Python made, with its fields in place of keys."""
    lines = []
    fields = []
    for fault in section_faults(error, section):
        key = fault.keys[0] or ("",)
        owner = _section_at(section, key[:-1]) or section
        own = key if owner is section else key[-1:]
        fields.append(f"{owner.__name__}.{'.'.join(map(str, own))}")
        lines.append(fault.message.replace("{key}", fields[-1], 1))
    return ConfigError("; ".join(lines), fields=fields)
