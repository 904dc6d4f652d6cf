"""Returned values: the number, or the JSON, of what a user's code gave back."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import ItemsView, KeysView, ValuesView
from decimal import Decimal
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

_LONGEST = 160


def finite_number(value: object) -> float | None:
    """The number that ``value`` is; None where it is none that a float can hold.

    Numbers are those of Python (int, float, bool, Fraction, Decimal), numpy's scalars, and arrays
    and tensors without a dimension. Text, complex numbers, NaN and infinities are none.
    """
    shapeless = hasattr(value, "dtype") and getattr(value, "shape", None) == ()
    if not shapeless and not isinstance(value, numbers.Real | Decimal):
        return None
    if isinstance(value, np.generic) and value.dtype.kind not in "biuf":
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (
        TypeError,
        ValueError,
        OverflowError,
        # Beyond the largest float, or no number after all.
    ):
        return None
    return number if math.isfinite(number) else None


def shown(value: object) -> str:
    """The value for an error's message, at most 160 characters of it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  boundary: of a user's own class, or an integer of too many digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def to_json(value: object) -> str:
    """JSON of a value, beside JSON's own types: numpy's scalars and arrays, tensors, views of a
    dict, sets, dataclasses, models of pydantic, dates, decimals and what else pydantic knows.

    Raises:
        TypeError: it holds something that JSON lacks, or itself.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except ValueError as error:
        if "Circular" not in str(error) and type(error) is ValueError:
            # Such as an integer of too many digits.
            raise
        raise TypeError(str(error)) from error


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, fallback=_of_others)


def _of_others(value: Any) -> Any:
    """What pydantic does not know."""
    if isinstance(value, KeysView | ValuesView | ItemsView | range):
        return list(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")
