"""What every section of the configuration has in common: frozen, strict about types, closed to unknown keys."""

from __future__ import annotations

import typing
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

__all__ = [
    "Arguments",
    "Count",
    "Decay",
    "Fraction",
    "Listed",
    "Natural",
    "Positive",
    "Seconds",
    "Section",
    "Weight",
    "Words",
    "entry_section",
    "plain_section",
]

T = TypeVar("T")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _as_tuple(value)


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


class Section(BaseModel):
    """A section. ``strict``: a text is never read as a number, nor 1.0 as an int; an int is a float."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


def plain_section(annotation: Any) -> type[Section] | None:
    """The section that a field of this type is, or None."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def entry_section(annotation: Any) -> type[Section] | None:
    """The section that each entry of a list or mapping of this type is, or None."""
    if typing.get_origin(annotation) not in (tuple, dict):
        return None
    return next(
        (section for part in typing.get_args(annotation) if (section := plain_section(part))), None
    )
